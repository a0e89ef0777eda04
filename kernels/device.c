/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a device.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/attach.h"
#include "kernels/say.h"
#include "kernels/work.h"

int backend_select(const char *name, const struct backend_ops **ret)
{
	if (!name)
		name = getenv("PFS_KERNELS");
	if (!name || !*name || !strcmp(name, "cuda"))
		*ret = &backend_cuda;
	else if (!strcmp(name, "ref"))
		*ret = &backend_ref;
	else
		return gpu_say(EINVAL, "kernels are '%s', ref and cuda are possible", name);
	return 0;
}

void pfs_gpu_options_init(struct pfs_gpu_options *options)
{
	*options = (struct pfs_gpu_options){.size = sizeof(*options), .register_threads = 4, .deadline_ms = 30000};
}

static int check_options(const struct pfs_gpu_options *o)
{
	if (o->size != sizeof(*o))
		return gpu_say(EINVAL, "pfs_gpu_options has %u bytes, this library knows %zu", o->size, sizeof(*o));
	if (o->device < 0)
		return gpu_say(EINVAL, "device is %d, ordinals begin with 0", o->device);
	if (o->register_threads < 1 || o->register_threads > 64)
		return gpu_say(EINVAL, "register_threads is %u, 1..64 are possible", o->register_threads);
	if (o->deadline_ms == 0)
		return gpu_say(EINVAL, "deadline_ms is 0");
	for (unsigned i = 0; i < sizeof(o->reserved) / sizeof(*o->reserved); i++)
		if (o->reserved[i])
			return gpu_say(EINVAL, "reserved fields of pfs_gpu_options are not 0");
	return 0;
}

static void init_locks(struct pfs_gpu *gpu)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&gpu->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gpu->news, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&gpu->over, NULL);
	registry_init(&gpu->registry);
}

void tuning_init(struct gpu_tuning *tuning)
{
	*tuning = (struct gpu_tuning){
		.in_bytes = 2 * MERGE_MAX_BYTES,
		.slots = 2,
		.spin_us = 1000,
		.spin_bytes = 256ull << 20,
		.copy_lanes = 2,
		.ahead = MIRRORS,
		.gap = STAGE_MAX_GAP,
	};
}

static int check_tuning(const struct gpu_tuning *t)
{
	uint64_t least = t->slots * STAGE_SLOT_BYTES;

	if (t->in_bytes < least || t->in_bytes > STAGE_RING_BYTES - least)
		return gpu_say(EINVAL, "%llu bytes of the ring for the way to the device; %u slots of %llu each way leave room for %llu..%llu",
			(unsigned long long)t->in_bytes, t->slots, (unsigned long long)STAGE_SLOT_BYTES, (unsigned long long)least,
			(unsigned long long)(STAGE_RING_BYTES - least));
	return 0;
}

static int start(struct pfs_gpu *gpu, const struct backend_ops *ops, const struct pfs_gpu_options *o)
{
	struct backend_needs needs = channels_need();
	uint64_t staging;
	uint8_t *mirror;
	int r;

	needs.device = o->device;
	needs.kernels_first = gpu->tuning.kernels_first;
	r = ops->open(&needs, &gpu->backend);
	if (r)
		return r;
	for (int i = 0; i < KERNELS; i++)
		if (gpu->tuning.blocks[i])
			gpu->backend->blocks[i] = gpu->tuning.blocks[i];
	gpu->backend->prefer_overlap = gpu->tuning.prefer_overlap;
	staging = gpu->backend->staging;
	mirror = gpu->backend->mirror;
	for (int i = 0; i < CHANNELS && !r; i++)
		r = channel_init(&gpu->channels[i], gpu, (enum channel_number)i, &staging, &mirror);
	return r ? r : work_threads_start(gpu);
}

int pfs_gpu_open(const struct pfs_gpu_options *options, struct pfs_gpu **ret)
{
	struct pfs_gpu_options o;
	const struct backend_ops *ops;
	int r;

	pfs_gpu_options_init(&o);
	if (options)
		o = *options;
	r = check_options(&o);
	if (!r)
		r = backend_select(o.kernels, &ops);
	if (r)
		return r;
	return gpu_open_with(ops, &o, ret);
}

int gpu_open_with(const struct backend_ops *ops, const struct pfs_gpu_options *o, struct pfs_gpu **ret)
{
	return gpu_open_tuned(ops, o, NULL, ret);
}

int gpu_open_tuned(const struct backend_ops *ops, const struct pfs_gpu_options *o, const struct gpu_tuning *tuning,
	struct pfs_gpu **ret)
{
	struct pfs_gpu *gpu = calloc(1, sizeof(*gpu));
	int r;

	if (!gpu)
		return gpu_say(ENOMEM, "no memory for a device");
	gpu->pid = getpid();
	init_locks(gpu);
	gpu->register_threads = o->register_threads;
	gpu->deadline_ms = o->deadline_ms;
	tuning_init(&gpu->tuning);
	if (tuning)
		gpu->tuning = *tuning;
	r = check_tuning(&gpu->tuning);
	if (!r)
		r = start(gpu, ops, o);
	if (r) {
		pfs_gpu_close(&gpu);
		return r;
	}
	*ret = gpu;
	return 0;
}

void pfs_gpu_close(struct pfs_gpu **closed)
{
	struct pfs_gpu *gpu = *closed;

	if (!gpu)
		return;
	*closed = NULL;
	if (gpu->pid != getpid()) /* a child of fork(2): all of it is its parent's */
		return;
	work_threads_stop(gpu);
	attach_forget(gpu);
	for (int i = 0; i < CHANNELS; i++)
		channel_deinit(&gpu->channels[i]);
	if (gpu->backend)
		gpu->backend->ops->close(gpu->backend);
	registry_deinit(&gpu->registry);
	pthread_cond_destroy(&gpu->news);
	pthread_cond_destroy(&gpu->over);
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

int pfs_gpu_info(struct pfs_gpu *gpu, struct pfs_gpu_info *ret)
{
	struct pfs_gpu_info info = {.staging_bytes = PFS_GPU_STAGING_BYTES};
	int r = work_mine(gpu);

	if (r)
		return r;
	info.compute_capability = gpu->backend->compute_capability;
	info.driver_version = gpu->backend->driver_version;
	info.mps = gpu->backend->mps;
	snprintf(info.kernels, sizeof(info.kernels), "%s", gpu->backend->ops->name);
	memcpy(info.device_name, gpu->backend->device_name, sizeof(info.device_name));
	registry_counts(&gpu->registry, &info.registrations, &info.registered_bytes);
	for (int i = 0; i < PATHS; i++)
		info.copies[i] = __atomic_load_n(&gpu->paths[i], __ATOMIC_RELAXED);
	pthread_mutex_lock(&gpu->lock);
	info.submit_cpu_ns = gpu->submit_cpu_ns;
	info.bytes_to_device = gpu->moved[1];
	info.bytes_to_host = gpu->moved[0];
	pthread_mutex_unlock(&gpu->lock);
	*ret = info;
	return 0;
}
