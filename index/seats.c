/* SPDX-License-Identifier: Apache-2.0 */
#include "index/seats.h"

#include <assert.h>
#include <string.h>

static uint64_t seat_check(const struct seat *seat, uint32_t number)
{
	uint64_t id[2];

	memcpy(id, seat->client_id, sizeof(id));
	return tables_check_end(tables_check_pair(id[0], id[1]) ^ tables_check_number(TABLES_KIND_SEAT, number),
				tables_check_pair(seat->session, seat->handle) ^ tables_check_pair(seat->process, number));
}

static void set_state(struct seat *seat, enum seat_state state)
{
	__atomic_store_n(&seat->state, (uint32_t)state, __ATOMIC_RELEASE);
}

enum seat_state seats_state(const struct tables *tables, uint32_t number)
{
	const struct seat *seat = &tables->seats[number];

	assert(number < SEATS);
	if (seat->state > SEAT_LEAVING || seat->check != seat_check(seat, number))
		return SEAT_FREE;
	return (enum seat_state)seat->state;
}

/* A seat that was damaged has any state: FREE first, so that the seal does not make it what it is not. */
static void seat_fill(struct tables *tables, uint32_t number, const struct seat *as)
{
	struct seat *seat = &tables->seats[number];

	set_state(seat, SEAT_FREE);
	tables_unseal(&seat->check);
	memcpy(seat->client_id, as->client_id, sizeof(seat->client_id));
	seat->session = as->session;
	seat->handle = as->handle;
	seat->process = as->process;
	__atomic_store_n(&seat->check, seat_check(seat, number), __ATOMIC_RELEASE);
	set_state(seat, SEAT_TAKEN);
}

uint32_t seats_take(struct tables *tables, const uint8_t client_id[16], uint64_t session, uint64_t handle, uint64_t process)
{
	static const struct seat crowd;
	struct seat seat = {.session = session, .handle = handle, .process = process};

	memcpy(seat.client_id, client_id, sizeof(seat.client_id));
	for (uint32_t number = 0; number < SEATS_CROWD; number++) {
		if (seats_state(tables, number) != SEAT_FREE)
			continue;
		seat_fill(tables, number, &seat);
		return number;
	}
	if (seats_state(tables, SEATS_CROWD) == SEAT_LEAVING)
		return SEATS_NONE;
	if (seats_state(tables, SEATS_CROWD) == SEAT_FREE)
		seat_fill(tables, SEATS_CROWD, &crowd);
	return SEATS_CROWD;
}

void seats_leave(struct tables *tables, uint32_t number)
{
	assert(seats_state(tables, number) == SEAT_TAKEN);
	set_state(&tables->seats[number], SEAT_LEAVING);
}

void seats_sweep(struct tables *tables, uint32_t number, uint32_t first, uint32_t count)
{
	uint64_t bit = 1ull << number;

	assert(seats_state(tables, number) == SEAT_LEAVING);
	assert(count <= SEATS_SWEEP && (uint64_t)first + count <= tables->slot_capacity);
	for (uint32_t slot = first; slot < first + count; slot++)
		if (tables->users[slot] & bit)
			__atomic_store_n(&tables->users[slot], tables->users[slot] & ~bit, __ATOMIC_RELEASE);
}

void seats_free(struct tables *tables, uint32_t number)
{
	assert(seats_state(tables, number) == SEAT_LEAVING);
	set_state(&tables->seats[number], SEAT_FREE);
}
