# shellcheck shell=bash disable=SC2034
# RabbitMQ: configuration, start, and whether it answers. Functions named rabbitmq_* are hooks.

rabbitmq_settings() { printf 'RABBIT_PORT RABBIT_API_PORT RABBIT_DIST_PORT RABBIT_EPMD_PORT'; }
rabbitmq_ports() { rabbitmq_settings; }
rabbitmq_process() { printf 'beam.smp'; }
rabbitmq_where() { printf 'amqp://127.0.0.1:%s' "$RABBIT_PORT"; }

# The scripts themselves: /usr/sbin/rabbitmq-server of Debian insists on a user of its own.
rabbitmq_sbin() {
	local folder
	for folder in /usr/lib/rabbitmq/bin /usr/lib/rabbitmq/lib/*/sbin "${RABBITMQ_HOME:-/opt/rabbitmq}/sbin"; do
		if [ -x "$folder/rabbitmq-server" ]; then
			printf '%s' "$folder"
			return
		fi
	done
	return 1
}

rabbitmq_needs() { rabbitmq_sbin >/dev/null || printf 'rabbitmq-server\n'; }
rabbitmq_prepare() { rabbitmq_sbin >/dev/null || die "no rabbitmq-server found"; }

rabbitmq_environment() {
	local top=$DIR/rabbitmq
	# Loopback for the node, its port mapper and the command line tools.
	local loopback='-kernel inet_dist_use_interface {127,0,0,1}'
	CLEAN_ENV=(
		RABBITMQ_NODENAME=safedelivr@localhost
		RABBITMQ_CONF_ENV_FILE="$top/etc/none"
		RABBITMQ_CONFIG_FILE="$top/etc/rabbitmq.conf"
		RABBITMQ_ADVANCED_CONFIG_FILE="$top/etc/advanced.config"
		RABBITMQ_ENABLED_PLUGINS_FILE="$top/etc/enabled_plugins"
		RABBITMQ_MNESIA_BASE="$top/data"
		RABBITMQ_LOG_BASE="$top/log"
		RABBITMQ_PID_FILE="$top/tmp/pid"
		RABBITMQ_DIST_PORT="$RABBIT_DIST_PORT"
		# Do not burn the processors in wait.
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$loopback +sbwt none +sbwtdcpu none +sbwtdio none"
		RABBITMQ_CTL_ERL_ARGS="$loopback"
		ERL_EPMD_ADDRESS=127.0.0.1
		ERL_EPMD_PORT="$RABBIT_EPMD_PORT"
	)
}

rabbitmq_configure() {
	local top=$DIR/rabbitmq
	fill "$HERE/rabbitmq/rabbitmq.conf" "$top/etc/rabbitmq.conf" PORT="$RABBIT_PORT" API_PORT="$RABBIT_API_PORT"
	cp "$HERE/rabbitmq/advanced.config" "$top/etc/advanced.config"
	printf '[rabbitmq_management].\n' >"$top/etc/enabled_plugins"
	rabbitmq_environment
}

rabbitmq_start() {
	rabbitmq_environment
	# Our own port mapper, in the foreground: left to itself Erlang starts one that outlives it.
	start_marked rabbitmq epmd -address 127.0.0.1 -port "$RABBIT_EPMD_PORT"
	for _ in {1..50}; do
		! listening "$RABBIT_EPMD_PORT" || break
		sleep 0.1
	done
	start_marked rabbitmq "$(rabbitmq_sbin)/rabbitmq-server"
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
		env -i PATH="$PATH" LANG=C.UTF-8 LC_ALL=C.UTF-8 HOME="$DIR/rabbitmq/home" "${CLEAN_ENV[@]}" \
			"$(rabbitmq_sbin)/$tool" "$@" 9>&-
	fi
}

# A protocol header must be answered by connection.start (class 10, method 10).
amqp_answers() {
	local got
	# shellcheck disable=SC2016
	got=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "AMQP\0\0\11\1" >&3 &&
		head -c 11 <&3 | od -An -v -tx1 | tr -d " \n"' _ "$RABBIT_PORT" 2>/dev/null) || return 1
	[[ $got == 010000????????000a000a ]]
}

rabbit_api() { # PATH
	# shellcheck disable=SC2016
	timeout 10 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
		printf "GET %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n" "$2" >&3 &&
		cat <&3' _ "$RABBIT_API_PORT" "$1" 2>/dev/null
}

rabbitmq_answers() {
	amqp_answers && [[ $(rabbit_api /api/overview) == *' 200 '*'"rabbitmq_version"'* ]]
}

# Once per start: the node says itself that it runs.
rabbitmq_ready() { rabbitmq_cli rabbitmq-diagnostics -q ping >/dev/null && rabbitmq_cli rabbitmq-diagnostics -q check_running >/dev/null; }

rabbitmq_versions() {
	local overview
	overview=$(rabbit_api /api/overview)
	printf 'RabbitMQ %s, Erlang %s (%s)' "$(json_text rabbitmq_version "$overview")" \
		"$(json_text erlang_version "$overview")" "${ENGINE[rabbitmq]}"
}
json_text() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p" <<<"$2" | head -n 1; }

rabbitmq_env() {
	printf 'export SAFEDELIVR_TEST_AMQP_URL=amqp://guest:guest@127.0.0.1:%s/\n' "$RABBIT_PORT"
	printf 'export SAFEDELIVR_TEST_RABBIT_API=http://guest:guest@127.0.0.1:%s\n' "$RABBIT_API_PORT"
}
