# SPDX-License-Identifier: Apache-2.0
#
# bash completion of prefixfs and prefixfsd. Commands and options are read from their --help, so that they are those of the
# program at hand; namespaces and records are read from the mount, with a limit in time, for a mount may hang.

# The program's --help for a command; nothing where it cannot be run.
_prefixfs_help() {
	"$@" --help 2>/dev/null
}

# "--name" of each option in a help text.
_prefixfs_options() {
	sed -n 's/^  \(--[a-z][a-z-]*\).*/\1/p' <<<"$1"
}

# What a help text calls the value of option $2: DIR, FILE, a|b|c, ...; nothing for a flag.
_prefixfs_argument() {
	sed -n "s/^  $2 \([^ ][^ ]*\)  .*/\1/p" <<<"$1"
}

_prefixfs_commands() {
	sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p' <<<"$1"
}

# Mount points of prefixfs on this host, one a line.
_prefixfs_mounts() {
	local rest point
	while read -r _ _ _ _ point rest; do
		[[ $rest == *" - fuse.prefixfs "* || $rest == *" - fuse prefixfs "* ]] && printf '%b\n' "$point"
	done </proc/self/mountinfo
}

# The mount that the command would take; $1: what --mount was given.
_prefixfs_mount() {
	local mounts
	if [[ -n ${1:-${PREFIXFS_MOUNT-}} ]]; then
		printf '%s\n' "${1:-$PREFIXFS_MOUNT}"
		return
	fi
	mapfile -t mounts < <(_prefixfs_mounts)
	[[ ${#mounts[@]} -eq 1 ]] && printf '%s\n' "${mounts[0]}"
}

# Names in a folder of the mount.
_prefixfs_list() {
	[[ -n $1 ]] && timeout -k 1 1 ls -1 -- "$1/$2" 2>/dev/null
}

# Models whose layouts come along, as the program finds them.
_prefixfs_models() {
	local folder file
	folder=$(dirname -- "$(readlink -f -- "$(command -v -- "$1")")")
	for file in "$folder"/tools/layouts/*-tp*.json "$folder"/../share/prefixfs/layouts/*-tp*.json; do
		[[ -e $file ]] || continue
		file=${file##*/}
		printf '%s\n' "${file%-tp*}"
	done | sort -u
}

# Fills COMPREPLY with the lines of $2 and the further words that begin with $1. (compgen -W would expand what a name holds.)
_prefixfs_reply() {
	local begin=$1 word lines
	mapfile -t lines <<<"$2"
	shift 2
	COMPREPLY=()
	for word in "${lines[@]}" "$@"; do
		[[ -n $word && $word == "$begin"* ]] && COMPREPLY+=("$word")
	done
}

_prefixfs_files() {
	compopt -o filenames 2>/dev/null
	mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}

# The value of option $2 of the help text $3, of which $1 is there.
_prefixfs_value() {
	local argument
	argument=$(_prefixfs_argument "$3" "$2")
	case $2:$argument in
	--ns:*) _prefixfs_reply "$1" "$(_prefixfs_list "$mount" ns)" ;;
	--model:*) _prefixfs_reply "$1" "$(_prefixfs_models "$program")" ;;
	--order:*) _prefixfs_reply "$1" "" strict lookups free ;;
	--ranks:*) _prefixfs_reply "$1" "" processes sessions ;;
	--mount:*) _prefixfs_files -d "$1" ;;
	--run-dir:*) _prefixfs_files -d "$1" ;;
	--log-file:* | *:FILE) _prefixfs_files -f "$1" ;;
	*:DIR) _prefixfs_files -d "$1" ;;
	*:BOOL) _prefixfs_reply "$1" "" true false ;;
	*:*\|*) _prefixfs_reply "$1" "${argument//|/$'\n'}" ;;
	esac
}

# The words of the line before the cursor, --name=VALUE put together again, go to `words`, the last one to `current`; is
# `current` the value of an option, its name goes to `option`.
_prefixfs_words() {
	local i word
	words=()
	for ((i = 1; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $i -gt 1 && ($word == = && ${words[-1]} == --* || ${words[-1]} == --*=) ]]; then
			words[-1]+=$word
		else
			words+=("$word")
		fi
	done
	current=${words[-1]}
	option=
	unset 'words[-1]'
	if [[ $current == --*=* ]]; then
		option=${current%%=*}
		current=${current#*=}
	fi
}

# Is this option followed by a word of its own?
_prefixfs_takes_value() {
	[[ $1 == --* && $1 != *=* && -n $(_prefixfs_argument "$2" "$1") ]]
}

# Options of the daemon, as `prefixfs mount` and prefixfsd take them, and the further ones given.
_prefixfs_daemon() {
	local daemon=prefixfsd text beside
	beside=$(dirname -- "$(command -v -- "$program")")/prefixfsd
	[[ -x $beside ]] && daemon=$beside
	text=$(_prefixfs_help "$daemon")
	if [[ -z $option && ${#words[@]} -gt 0 ]] && _prefixfs_takes_value "${words[-1]}" "$text"; then
		option=${words[-1]}
	fi
	if [[ -n $option ]]; then
		_prefixfs_value "$current" "$option" "$text"
	elif [[ $current == -* ]]; then
		compopt -o nospace 2>/dev/null
		_prefixfs_reply "$current" "$(_prefixfs_options "$text" | sed '/^--help$/d; s/$/=/')" "$@"
	else
		_prefixfs_files -d "$current"
	fi
}

_prefixfsd() {
	local program=$1 words current option mount=
	_prefixfs_words
	_prefixfs_daemon --help
}

_prefixfs() {
	local program=$1 words words_of_mount current option mount command=() arguments=() text i given=
	_prefixfs_words

	# The command, which may be of two words.
	text=$(_prefixfs_help "$program")
	while [[ ${#words[@]} -gt 0 && $text == *"Each command has --help"* ]]; do
		command+=("${words[0]}")
		words=("${words[@]:1}")
		text=$(_prefixfs_help "$program" "${command[@]}")
	done
	if [[ $text == *"Each command has --help"* ]]; then
		_prefixfs_reply "$current" "$(_prefixfs_commands "$text")" --help
		return
	fi
	if [[ ${command[0]} == mount ]]; then
		mapfile -t words_of_mount < <(_prefixfs_options "$text")
		_prefixfs_daemon "${words_of_mount[@]}"
		return
	fi

	# Its arguments, apart from options and their values.
	for ((i = 0; i < ${#words[@]}; i++)); do
		case ${words[i]} in
		--mount) given=${words[i + 1]-} ;;
		--mount=*) given=${words[i]#*=} ;;
		esac
		if _prefixfs_takes_value "${words[i]}" "$text"; then
			if ((i + 1 == ${#words[@]})); then
				option=${words[i]}
			fi
			((i++))
		elif [[ ${words[i]} != -* ]]; then
			arguments+=("${words[i]}")
		fi
	done
	mount=$(_prefixfs_mount "$given")

	if [[ -n $option ]]; then
		_prefixfs_value "$current" "$option" "$text"
		return
	fi
	if [[ $current == -* ]]; then
		_prefixfs_reply "$current" "$(_prefixfs_options "$text")"
		return
	fi
	case "${command[*]}:${#arguments[@]}" in
	unmount:0)
		compopt -o filenames 2>/dev/null # quotes what must be
		_prefixfs_reply "$current" "$(_prefixfs_mounts)"
		;;
	"ns create:"*) ;; # a new name
	"ns show:0" | "ns remove:0") _prefixfs_reply "$current" "$(_prefixfs_list "$mount" ns)" ;;
	"ns "* | bench* | version*) ;;
	replay:0) _prefixfs_files -f "$current" ;;
	replay:*) ;;
	*:0) _prefixfs_reply "$current" "$(_prefixfs_list "$mount" ns)" ;;
	probe:*) _prefixfs_reply "$current" "$(_prefixfs_list "$mount" "ns/${arguments[0]}/records" | sed 's/.*-//')" ;;
	stat:* | drain:* | fsck:* | reset:*) ;;
	*) _prefixfs_reply "$current" "$(_prefixfs_list "$mount" "ns/${arguments[0]}/records")" ;;
	esac
}

complete -F _prefixfs prefixfs
complete -F _prefixfsd prefixfsd
