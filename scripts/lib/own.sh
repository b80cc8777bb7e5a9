# shellcheck shell=bash
# Servers of our own: beside those that a developer runs, in a folder that goes
# away, on ports that are free. Sourced by scripts/test and scripts/bench, which set HERE.

# The variables by which scripts/services is told, with the port that is tried first.
OWN_PORTS=(RABBIT_PORT=5683 RABBIT_TLS_PORT=5983 RABBIT_API_PORT=15683 RABBIT_DIST_PORT=25683 RABBIT_EPMD_PORT=4383
	CQL_PORT=9053 CASSANDRA_STORAGE_PORT=7013 POSTGRES_PORT=5483 PGBOUNCER_PORT=6483)

# forget_settings: nothing that the caller exported for a Safedelivr of his own reaches what is
# tested. What tells scripts/services how to work stays.
forget_settings() {
	local name
	for name in $(compgen -e SAFEDELIVR_ || true); do
		case $name in
		SAFEDELIVR_RABBIT_VERSION | SAFEDELIVR_RABBIT_ROOT | SAFEDELIVR_SERVICES_ENGINE | SAFEDELIVR_SERVICES_JARS | SAFEDELIVR_SERVICES_TIMEOUT) ;;
		SAFEDELIVR_JAVA_HOME | SAFEDELIVR_*_IMAGE | SAFEDELIVR_CASSANDRA_HEAP) ;;
		*) unset "$name" ;;
		esac
	done
}

# choose_ports: tell scripts/services of ports that are free.
choose_ports() {
	local pair port
	for pair in "${OWN_PORTS[@]}"; do
		port=$(free_port "${pair#*=}")
		export "SAFEDELIVR_${pair%%=*}=$port"
	done
}

# own_up FOLDER NAME...: start these servers there and load what tests need to know of them.
own_up() {
	export SAFEDELIVR_SERVICES_DIR=$1
	OWN_NAMES=("${@:2}")
	choose_ports
	OWN_UP=yes
	"$HERE/services" up "${OWN_NAMES[@]}" >/dev/null || return
	# shellcheck disable=SC1091
	. "$SAFEDELIVR_SERVICES_DIR/env"
}

# own_down: stop them. Safe to call at any time and twice.
own_down() {
	[ "${OWN_UP:-no}" = yes ] || return 0
	"$HERE/services" down || return
	OWN_UP=no
}

own_versions() { "$HERE/services" status "${OWN_NAMES[@]}" | sed -E 's/: up, pid [0-9]+, [^,]*,/:/'; }

free_port() { # FIRST
	local port
	for ((port = $1; port < $1 + 200; port += 10)); do
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			printf '%d' "$port"
			return
		fi
	done
	return 1
}

# stop_clusters FOLDER...: stop the clusters of tests that ended early.
stop_clusters() {
	local folder code=0
	for folder; do
		[ ! -d "$folder" ] || SAFEDELIVR_SERVICES_DIR=$folder "$HERE/services" down || code=1
	done
	return "$code"
}

# left_behind: fail if a process that a test started is there. The environment of each has SAFEDELIVR_TEST_RUN.
left_behind() {
	local file pid code=0
	sleep 0.5 # a process that is ending needs a moment
	# shellcheck disable=SC2013 # no white space in them
	for file in $(grep -lzxF "SAFEDELIVR_TEST_RUN=$SAFEDELIVR_TEST_RUN" /proc/[0-9]*/environ 2>/dev/null); do
		pid=$(cut -d/ -f3 <<<"$file")
		kill -0 "$pid" 2>/dev/null || continue # it was the grep
		printf 'left behind: %s %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-120)"
		kill -KILL "$pid"
		code=1
	done
	return "$code"
}

# roomy_memory: print a folder in memory, if there is one with 12 GB. The servers synchronise files thousands of times,
# which takes longer on a disk than all they compute.
roomy_memory() {
	[ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 12000000 ] 2>/dev/null || return
	printf /dev/shm
}
