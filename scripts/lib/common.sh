# shellcheck shell=bash disable=SC2034
# Settings, processes, ports and waiting. Sourced by scripts/services.

say() { printf 'services: %s\n' "$*" >&2; }
die() {
	say "$*"
	exit 1
}

[ "$(uname -s)" = Linux ] || die "Linux only"

DIR=$(realpath -m -- "${SAFEDELIVR_SERVICES_DIR:-${HOME:?}/.cache/safedelivr/services}")
# Outside DIR, so that a throw-away DIR needs no download of its own.
JARS=$(realpath -m -- "${SAFEDELIVR_SERVICES_JARS:-${HOME:-$DIR}/.cache/safedelivr/jars}")
# RabbitMQ 4 of Debian 13, if SAFEDELIVR_RABBIT_VERSION is 4.
RABBIT_ROOT=$(realpath -m -- "${SAFEDELIVR_RABBIT_ROOT:-${HOME:-$DIR}/.cache/safedelivr/rabbitmq-4}")
RABBIT_VERSION=${SAFEDELIVR_RABBIT_VERSION:-3}
TIMEOUT=${SAFEDELIVR_SERVICES_TIMEOUT:-120}
GRACE=20
case $DIR in
*[!A-Za-z0-9/._+@-]*) die "SAFEDELIVR_SERVICES_DIR may hold letters, digits and /._+@- only: $DIR" ;;
esac

# What save_settings keeps while a service runs, so that later commands find it.
declare -A ENGINE=([rabbitmq]=packages [cassandra]=packages [postgres]=packages [pgbouncer]=packages)
RABBIT_PORT=${SAFEDELIVR_RABBIT_PORT:-5673}
RABBIT_TLS_PORT=${SAFEDELIVR_RABBIT_TLS_PORT:-5963}
RABBIT_API_PORT=${SAFEDELIVR_RABBIT_API_PORT:-15673}
RABBIT_DIST_PORT=${SAFEDELIVR_RABBIT_DIST_PORT:-25673}
RABBIT_EPMD_PORT=${SAFEDELIVR_RABBIT_EPMD_PORT:-4373}
CQL_PORT=${SAFEDELIVR_CQL_PORT:-9043}
STORAGE_PORT=${SAFEDELIVR_CASSANDRA_STORAGE_PORT:-7003}
HEAP=${SAFEDELIVR_CASSANDRA_HEAP:-1536M}
CENTRES=${SAFEDELIVR_CASSANDRA_CENTRES:-1}
POSTGRES_PORT=${SAFEDELIVR_POSTGRES_PORT:-5433}
PGBOUNCER_PORT=${SAFEDELIVR_PGBOUNCER_PORT:-6433}

# A service of several nodes is several of these: rabbitmq, rabbitmq-2, rabbitmq-3.
declare -A NODES_OF=([rabbitmq]=1 [cassandra]=1 [postgres]=1 [pgbouncer]=1)

# The signal that ends a server, if it is not TERM: with that one PostgreSQL waits for its clients,
# and PgBouncer, which keeps nothing, may do so.
declare -A STOP_SIGNAL=([postgres]=INT [pgbouncer]=KILL)

# hook WHAT NODE ARGUMENT...: the function for it of that server, which finds in NODE its number
# and in TOP its folder.
hook() {
	local what=$1 NODE=1 TOP=$DIR/$2
	[[ $2 != *-* ]] || NODE=${2#*-}
	"${2%%-*}_$what" "${@:3}"
}

# nodes_of NAME: its nodes, the first one last, because others may need it to end.
nodes_of() {
	local i
	for ((i = NODES_OF[$1]; i > 1; i--)); do printf '%s-%d\n' "$1" "$i"; done
	printf '%s\n' "$1"
}

save_settings() {
	local variable
	{
		printf 'ENGINE[%s]=%s\n' "$1" "${ENGINE[$1]}"
		printf 'NODES_OF[%s]=%s\n' "${1%%-*}" "${NODES_OF[${1%%-*}]}"
		for variable in $(hook settings "$1"); do printf '%s=%q\n' "$variable" "${!variable}"; done
	} >"$DIR/$1/settings"
}

load_settings() {
	# shellcheck disable=SC1090
	[ ! -f "$DIR/$1/settings" ] || . "$DIR/$1/settings"
}

# lock: one change at a time in this folder. Descriptor 9 is closed in what we start.
lock() {
	mkdir -p "$DIR"
	if [ ! -e "$DIR/.safedelivr-services" ]; then
		[ -z "$(ls -A "$DIR")" ] || die "$DIR holds something else: name an empty folder in SAFEDELIVR_SERVICES_DIR"
		: >"$DIR/.safedelivr-services"
	fi
	exec 9>"$DIR/.safedelivr-services"
	flock -w 600 9 || die "another scripts/services is at work in $DIR"
}

# fresh_folders NAME KEEP: the folders of a service, without old data unless KEEP is yes.
fresh_folders() {
	local top=$DIR/$1
	if [ "$2" != yes ]; then
		rm -rf "$top/data" "$top/log.old"
		[ ! -d "$top/log" ] || mv "$top/log" "$top/log.old"
	fi
	mkdir -p "$top/data" "$top/log" "$top/etc" "$top/tmp" "$top/home"
	printf '%s' "${ENGINE[$1]}" >"$top/engine"
}

# fill TEMPLATE TARGET NAME=VALUE...: copy with every @NAME@ replaced.
fill() {
	local template=$1 target=$2 pair edits=()
	shift 2
	for pair; do edits+=(-e "s|@${pair%%=*}@|${pair#*=}|g"); done
	sed "${edits[@]}" "$template" >"$target"
}

now() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }
since() { # in seconds with one decimal
	local tenths=$((($(now) - $1) / 100000))
	printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# --- processes -----------------------------------------------------------------------------
# Every process started here carries a mark in its environment. That finds all of them, also
# those that left their session (epmd, erl_child_setup), and no other processes. Only the processes
# that a server of PostgreSQL forks lose it; they are found by their folder.

mark() { printf 'SAFEDELIVR_SERVICE=%s:%s' "$1" "$DIR"; }

marked_pids() {
	{ with_mark "$1" && children_of "$1"; } | awk '!seen[$0]++'
}

# children_of NAME: processes of a server that lost the mark.
children_of() {
	[ "${1%%-*}" != postgres ] || hook children "$1"
}

with_mark() {
	local file
	while read -r file; do
		# Not those of a chroot or container, where the same folder name is another folder.
		if [ "${file%/environ}/root" -ef / ]; then cut -d/ -f3 <<<"$file"; fi
	done < <(grep -lzxF -- "$(mark "$1")" /proc/[0-9]*/environ 2>/dev/null)
}

# start_marked NAME COMMAND...: detached, with nothing inherited but the variables in CLEAN_ENV.
start_marked() {
	local name=$1
	shift
	(
		exec </dev/null >>"$DIR/$name/log/console.log" 2>&1 9>&-
		cd "$DIR/$name/tmp" || exit
		# Neither the few files of a login shell nor the billion of some container engines.
		ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
		exec setsid env -i "$(mark "$name")" PATH="$PATH" LANG=C.UTF-8 LC_ALL=C.UTF-8 \
			HOME="$DIR/$name/home" TMPDIR="$DIR/$name/tmp" "${CLEAN_ENV[@]}" "$@"
	) &
}

running() {
	load_settings "$1"
	case ${ENGINE[$1]:-packages} in
	docker) container_runs "$1" ;;
	*) [ -n "$(marked_pids "$1" | without_helpers)" ] ;;
	esac
}

nothing_left() { [ "${ENGINE[$1]:-packages}" = docker ] || [ -z "$(marked_pids "$1")" ]; }

# A port mapper alone is what a crash leaves behind.
without_helpers() {
	local pid
	while read -r pid; do
		case $(cat "/proc/$pid/comm" 2>/dev/null) in
		epmd | '') ;;
		*) printf '%s\n' "$pid" ;;
		esac
	done
}

# server_pid NAME: the process that does the work (beam.smp, java or the first of PostgreSQL).
server_pid() {
	local pid wanted
	load_settings "$1"
	wanted=$(hook process "$1")
	if [ "${ENGINE[$1]:-packages}" = docker ]; then
		container_pid "$1" "$wanted"
		return
	fi
	for pid in $(with_mark "$1" | sort -n); do
		if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$wanted" ]; then
			printf '%s\n' "$pid"
			return
		fi
	done
}

# stop NAME...: ask all of them to end, then wait for each, then make sure.
stop() {
	local name pid
	for name; do
		load_settings "$name"
		[ "${ENGINE[$name]:-packages}" = packages ] || continue
		pid=$(server_pid "$name")
		# A stopped process (SIGSTOP) would not see the TERM.
		signal CONT "$(marked_pids "$name")"
		signal "${STOP_SIGNAL[${name%%-*}]:-TERM}" "${pid:-$(marked_pids "$name")}"
	done
	for name; do
		if [ "${ENGINE[$name]:-packages}" = docker ]; then
			container_stop "$name"
		else
			wait_until_gone "$name"
		fi
		rm -f "$DIR/$name/settings"
		say "$name is down"
	done
}

signal() { # SIGNAL "PID PID ..."
	# shellcheck disable=SC2086
	[ -z "$2" ] || kill -s "$1" -- $2 2>/dev/null || true
}

wait_until_gone() {
	local name=$1 deadline=$((SECONDS + GRACE))
	while [ -n "$(server_pid "$name")" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
	[ -z "$(server_pid "$name")" ] || say "$name does not end within $GRACE s: killing it"
	signal KILL "$(server_pid "$name")"
	# The rest (epmd, port programs, a wrapping shell) ends with it or is told to.
	deadline=$((SECONDS + 5))
	while [ -n "$(marked_pids "$name")" ] && [ "$SECONDS" -lt "$deadline" ]; do
		signal TERM "$(marked_pids "$name")"
		sleep 0.1
	done
	signal KILL "$(marked_pids "$name")"
	sleep 0.1
	[ -z "$(marked_pids "$name")" ] || die "$name: still there: $(marked_pids "$name" | tr '\n' ' ')"
}

# --- ports ---------------------------------------------------------------------------------

# listening PORT: a process listens there, on an address that is needed.
listening() {
	local hex
	hex=$(printf '%04X' "$1")
	awk -v port="$hex" '$4 == "0A" {
		split($2, at, ":")
		if (at[2] != port) next
		if (length(at[1]) == 8 && at[1] ~ /7F$/ && at[1] != "0100007F") next
		found = 1
	} END { exit !found }' /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

check_ports() {
	local variable
	local variable
	for variable in $(hook ports "$1"); do
		! listening "${!variable}" || die "$1: port ${!variable} is taken by another process; free it or set SAFEDELIVR_$(port_name "$variable")"
	done
}

port_name() {
	case $1 in
	STORAGE_PORT) printf 'CASSANDRA_STORAGE_PORT' ;;
	*) printf '%s' "$1" ;;
	esac
}

# --- waiting -------------------------------------------------------------------------------

answers_within() { # NAME SECONDS
	local deadline=$((SECONDS + $2))
	until hook answers "$1"; do
		[ "$SECONDS" -lt "$deadline" ] && running "$1" || return 1
		sleep 0.2
	done
}

wait_until_up() {
	local name=$1
	# The mark appears a moment after the start.
	for _ in {1..10}; do
		! running "$name" || break
		sleep 0.1
	done
	if answers_within "$name" "$TIMEOUT" && hook ready "$name"; then return 0; fi
	if running "$name"; then
		say "$name does not answer after $TIMEOUT s; the end of its logs:"
	else
		say "$name ended by itself; the end of its logs:"
	fi
	log_tail "$name" >&2
	stop "$name"
	return 1
}

log_tail() {
	if [ "${ENGINE[$1]}" = docker ]; then container_log "$1"; fi
	local file
	for file in "$DIR/$1/log"/*.log; do
		[ -s "$file" ] || continue
		printf -- '--- %s\n' "$file"
		tail -n 25 -- "$file" | cut -c 1-300
	done
}

# --- what tests need to know ---------------------------------------------------------------

env_lines() {
	local name
	for name; do hook env "$name"; done
}

write_env() {
	cmd_env >"$DIR/env.new"
	mv "$DIR/env.new" "$DIR/env"
}
