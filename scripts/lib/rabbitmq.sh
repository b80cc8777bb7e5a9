# shellcheck shell=bash disable=SC2034
# RabbitMQ: configuration, start, and whether it answers. Functions named rabbitmq_* are hooks.

rabbitmq_settings() { printf 'RABBIT_PORT RABBIT_TLS_PORT RABBIT_API_PORT RABBIT_DIST_PORT RABBIT_EPMD_PORT RABBIT_VERSION'; }
rabbitmq_ports() { [ "$NODE" -gt 1 ] || printf 'RABBIT_PORT RABBIT_TLS_PORT RABBIT_API_PORT RABBIT_DIST_PORT RABBIT_EPMD_PORT'; }
rabbitmq_process() { printf 'beam.smp'; }
rabbitmq_where() { printf 'amqp://127.0.0.1:%s' "$((RABBIT_PORT + NODE - 1))"; }

# rabbit_node NUMBER: its name in Erlang.
rabbit_node() { if [ "$1" -eq 1 ]; then printf 'safedelivr@localhost'; else printf 'safedelivr-%s@localhost' "$1"; fi; }

# The scripts themselves: /usr/sbin/rabbitmq-server of Debian insists on a user of its own.
rabbitmq_sbin() {
	local folder
	if [ "$RABBIT_VERSION" = 4 ]; then
		for folder in "$RABBIT_ROOT"/usr/lib/rabbitmq/lib/*/sbin; do
			[ ! -x "$folder/rabbitmq-server" ] || printf '%s' "${folder#"$RABBIT_ROOT"}"
		done | grep .
		return
	fi
	for folder in /usr/lib/rabbitmq/bin /usr/lib/rabbitmq/lib/*/sbin "${RABBITMQ_HOME:-/opt/rabbitmq}/sbin"; do
		if [ -x "$folder/rabbitmq-server" ]; then
			printf '%s' "$folder"
			return
		fi
	done
	return 1
}

rabbitmq_needs() {
	if [ "$RABBIT_VERSION" = 4 ]; then
		[ -x "$RABBIT_ROOT/usr/sbin/rabbitmq-server" ] || command -v debootstrap >/dev/null || printf 'debootstrap\n'
	else
		rabbitmq_sbin >/dev/null || printf 'rabbitmq-server\n'
	fi
	command -v openssl >/dev/null || printf 'openssl\n'
}

rabbitmq_prepare() {
	[ "$RABBIT_VERSION" != 4 ] || make_rabbit_root
	rabbitmq_sbin >/dev/null || die "no rabbitmq-server found"
}

# make_rabbit_root: RabbitMQ 4 with its Erlang, as Debian 13 has them, in a folder.
make_rabbit_root() {
	[ ! -x "$RABBIT_ROOT/usr/sbin/rabbitmq-server" ] || return 0
	[ "$(id -u)" -eq 0 ] || die "RabbitMQ 4 needs root: run scripts/services up once as root"
	say "debootstrap $RABBIT_ROOT"
	rm -rf "$RABBIT_ROOT.new"
	mkdir -p "${RABBIT_ROOT%/*}"
	debootstrap --variant=minbase --include=rabbitmq-server trixie "$RABBIT_ROOT.new" >>"$DIR/install.log" 2>&1 9>&- ||
		die "Debian 13 cannot be had (see $DIR/install.log)"
	rm -rf "$RABBIT_ROOT"
	mv "$RABBIT_ROOT.new" "$RABBIT_ROOT"
}

# The programs of RabbitMQ 4 see the /usr of that folder, and are otherwise processes as all others.
rabbit_program() {
	PROGRAM=("$@")
	# shellcheck disable=SC2016
	[ "$RABBIT_VERSION" != 4 ] || PROGRAM=(unshare -m sh -c 'mount --bind "$0/usr" /usr && exec "$@"' "$RABBIT_ROOT" "$@")
}

rabbitmq_environment() {
	local top=$TOP
	# Loopback for the node, its port mapper and the command line tools.
	local loopback='-kernel inet_dist_use_interface {127,0,0,1}'
	CLEAN_ENV=(
		RABBITMQ_NODENAME="$(rabbit_node "$NODE")"
		RABBITMQ_CONF_ENV_FILE="$top/etc/none"
		RABBITMQ_CONFIG_FILE="$top/etc/rabbitmq.conf"
		RABBITMQ_ADVANCED_CONFIG_FILE="$top/etc/advanced.config"
		RABBITMQ_ENABLED_PLUGINS_FILE="$top/etc/enabled_plugins"
		RABBITMQ_MNESIA_BASE="$top/data"
		RABBITMQ_LOG_BASE="$top/log"
		RABBITMQ_PID_FILE="$top/tmp/pid"
		RABBITMQ_DIST_PORT="$((RABBIT_DIST_PORT + NODE - 1))"
		# Do not burn the processors in wait.
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$loopback +sbwt none +sbwtdcpu none +sbwtdio none"
		RABBITMQ_CTL_ERL_ARGS="$loopback"
		ERL_EPMD_ADDRESS=127.0.0.1
		ERL_EPMD_PORT="$RABBIT_EPMD_PORT"
	)
}

rabbitmq_configure() {
	local top=$TOP i
	server_certificate 127.0.0.1
	fill "$HERE/rabbitmq/rabbitmq.conf" "$top/etc/rabbitmq.conf" PORT="$((RABBIT_PORT + NODE - 1))" \
		TLS_PORT="$((RABBIT_TLS_PORT + NODE - 1))" ETC="$top/etc" API_PORT="$((RABBIT_API_PORT + NODE - 1))"
	if [ "${NODES_OF[rabbitmq]}" -gt 1 ]; then
		{
			printf 'cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config\n'
			# No pause before they join: a lock keeps them from each other. RabbitMQ 4 has no pause.
			[ "$RABBIT_VERSION" = 4 ] || printf 'cluster_formation.randomized_startup_delay_range.%s = 0\n' min max
			for ((i = 1; i <= NODES_OF[rabbitmq]; i++)); do
				printf 'cluster_formation.classic_config.nodes.%d = %s\n' "$i" "$(rabbit_node "$i")"
			done
		} >>"$top/etc/rabbitmq.conf"
		share_cookie
	fi
	cp "$HERE/rabbitmq/advanced.config" "$top/etc/advanced.config"
	printf '[rabbitmq_management].\n' >"$top/etc/enabled_plugins"
	rabbitmq_environment
}

# share_cookie: nodes talk to each other only if they have the same one.
share_cookie() {
	local cookie=$DIR/rabbitmq/home/.erlang.cookie
	mkdir -p "${cookie%/*}"
	[ -s "$cookie" ] || (umask 077 && od -An -N15 -tx1 /dev/urandom | tr -d ' \n' >"$cookie")
	chmod 400 "$cookie"
	[ "$NODE" -eq 1 ] || cp -pf "$cookie" "$TOP/home/.erlang.cookie"
}

rabbitmq_start() {
	rabbitmq_environment
	# Our own port mapper, in the foreground: left to itself Erlang starts one that outlives it.
	# All nodes share it, and it stays when one of them is killed.
	rabbit_program epmd
	listening "$RABBIT_EPMD_PORT" || start_marked rabbitmq "${PROGRAM[@]}" -address 127.0.0.1 -port "$RABBIT_EPMD_PORT"
	for _ in {1..50}; do
		! listening "$RABBIT_EPMD_PORT" || break
		sleep 0.1
	done
	rabbit_program "$(rabbitmq_sbin)/rabbitmq-server"
	start_marked "${TOP##*/}" "${PROGRAM[@]}"
}

rabbitmq_container_command() {
	rabbitmq_environment
	COMMAND=(rabbitmq-server)
}

rabbitmq_cli() {
	local tool=$1
	shift
	rabbitmq_environment
	if [ "${ENGINE[rabbitmq]}" = docker ]; then
		docker exec "$(container rabbitmq)" "$tool" "$@"
	else
		rabbit_program "$(rabbitmq_sbin)/$tool"
		env -i PATH="$PATH" LANG=C.UTF-8 LC_ALL=C.UTF-8 HOME="$TOP/home" "${CLEAN_ENV[@]}" "${PROGRAM[@]}" "$@" 9>&-
	fi
}

# A protocol header must be answered by connection.start (class 10, method 10).
amqp_answers() {
	local got
	# shellcheck disable=SC2016
	got=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "AMQP\0\0\11\1" >&3 &&
		head -c 11 <&3 | od -An -v -tx1 | tr -d " \n"' _ "$((RABBIT_PORT + NODE - 1))" 2>/dev/null) || return 1
	[[ $got == 010000????????000a000a ]]
}

rabbit_api() { # PATH
	# shellcheck disable=SC2016
	timeout 10 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
		printf "GET %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n" "$2" >&3 &&
		cat <&3' _ "$((RABBIT_API_PORT + NODE - 1))" "$1" 2>/dev/null
}

rabbitmq_answers() {
	amqp_answers && [[ $(rabbit_api /api/overview) == *' 200 '*'"rabbitmq_version"'* ]]
}

# Once per start: the node says itself that it runs, and in a cluster that the others do.
rabbitmq_ready() {
	local deadline=$((SECONDS + TIMEOUT))
	if [ "${NODES_OF[rabbitmq]}" -eq 1 ]; then
		rabbitmq_cli rabbitmq-diagnostics -q ping >/dev/null && rabbitmq_cli rabbitmq-diagnostics -q check_running >/dev/null
		return
	fi
	until [ "$(rabbit_api /api/nodes | grep -o '"running":true' | wc -l)" -eq "${NODES_OF[rabbitmq]}" ]; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

rabbitmq_versions() {
	local overview
	overview=$(rabbit_api /api/overview)
	printf 'RabbitMQ %s, Erlang %s (%s)' "$(json_text rabbitmq_version "$overview")" \
		"$(json_text erlang_version "$overview")" "${ENGINE[rabbitmq]}"
}
json_text() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p" <<<"$2" | head -n 1; }

rabbitmq_env() {
	local i urls='' secure=''
	for ((i = 0; i < NODES_OF[rabbitmq]; i++)); do
		urls+=,amqp://guest:guest@127.0.0.1:$((RABBIT_PORT + i))/
		secure+=,amqps://guest:guest@127.0.0.1:$((RABBIT_TLS_PORT + i))/
	done
	printf 'export SAFEDELIVR_TEST_AMQP_URL=%s\n' "${urls#,}"
	printf 'export SAFEDELIVR_TEST_AMQPS_URL=%s\n' "${secure#,}"
	tls_env
	printf 'export SAFEDELIVR_TEST_RABBIT_API=http://guest:guest@127.0.0.1:%s\n' "$RABBIT_API_PORT"
}
