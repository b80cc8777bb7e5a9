# shellcheck shell=bash disable=SC2034,SC2153
# PostgreSQL: configuration, start, and whether it answers. Functions named postgres_* are hooks.

postgres_settings() { printf 'POSTGRES_PORT'; }
postgres_ports() { [ "$NODE" -gt 1 ] || printf 'POSTGRES_PORT'; }
postgres_process() { printf 'postgres'; }
postgres_where() { printf 'postgres 127.0.0.1:%s' "$(postgres_port "$NODE")"; }
postgres_port() { printf '%d' $((POSTGRES_PORT + $1 - 1)); }
postgres_url() { printf 'postgres://safedelivr:safedelivr@127.0.0.1:%d/safedelivr' "$(postgres_port "$1")"; }

# postgres_node NUMBER: its name.
postgres_node() { if [ "$1" -eq 1 ]; then printf 'postgres'; else printf 'postgres-%d' "$1"; fi; }

# postgres_primary: the number of the node that is the primary: the first one, until another is promoted.
postgres_primary() { cat "$DIR/postgres/primary" 2>/dev/null || printf 1; }

# postgres_bin: the folder of the newest server here.
postgres_bin() {
	local server
	server=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
	[ -x "$server" ] || server=$(command -v postgres) || return
	dirname "$server"
}

postgres_needs() {
	postgres_bin >/dev/null || printf 'postgresql\n'
	command -v openssl >/dev/null || printf 'openssl\n'
}

postgres_prepare() { postgres_bin >/dev/null || die "no PostgreSQL found"; }

postgres_configure() {
	local file
	server_certificate 127.0.0.1
	for file in postgresql.conf pg_hba.conf; do
		fill "$HERE/postgres/$file" "$TOP/etc/$file" PORT="$(postgres_port "$NODE")" ETC="$TOP/etc"
	done
	cp "$HERE/postgres/start" "$TOP/etc/start"
	# With new data the first node is the primary again.
	[ "$NODE" -gt 1 ] || [ -n "$(ls -A "$TOP/data")" ] || rm -f "$TOP/primary"
}

# postgres_upstream: the connection string of the primary, for a standby. Nothing for the primary.
postgres_upstream() {
	local primary
	primary=$(postgres_primary)
	[ "$primary" -ne "$NODE" ] || return 0
	printf 'host=127.0.0.1 port=%d user=safedelivr password=safedelivr dbname=postgres application_name=%s' \
		"$(postgres_port "$primary")" "${TOP##*/}"
}

# postgres_follow: write which server this node follows.
postgres_follow() { printf "primary_conninfo = '%s'\n" "$(postgres_upstream)" >"$TOP/etc/upstream.conf"; }

postgres_environment() {
	postgres_follow
	CLEAN_ENV=(DATA="$TOP/data" ETC="$TOP/etc" UPSTREAM="$(postgres_upstream)" WAIT="$TIMEOUT")
}

postgres_start() {
	# Nothing of this node runs. PostgreSQL takes a dead server for a running one until its parent has waited for it.
	rm -f "$TOP/data/postmaster.pid"
	postgres_environment
	CLEAN_ENV+=(PATH="$(postgres_bin):$PATH")
	as_other_user sh "$TOP/etc/start"
	start_marked "${TOP##*/}" "${PROGRAM[@]}"
}

# In the container, root becomes its user postgres. Other users get a name there, which initdb insists on.
postgres_container_command() {
	postgres_environment
	# shellcheck disable=SC2016
	COMMAND=(sh -c '
		if [ "$(id -u)" -eq 0 ]; then
			chown -R postgres "$DATA" "$ETC" "$TMPDIR" "$HOME"
			exec gosu postgres sh "$ETC/start"
		fi
		printf "postgres:x:%d:%d::/:/bin/sh\n" "$(id -u)" "$(id -g)" >"$TMPDIR/passwd"
		printf "postgres:x:%d:\n" "$(id -g)" >"$TMPDIR/group"
		export NSS_WRAPPER_PASSWD="$TMPDIR/passwd" NSS_WRAPPER_GROUP="$TMPDIR/group"
		LD_PRELOAD=$(echo /usr/lib/*/libnss_wrapper.so) exec sh "$ETC/start"')
}

# as_other_user COMMAND...: put into PROGRAM the command that runs it in this folder as another user than root, which
# PostgreSQL and PgBouncer refuse. This user may read what root may: folders of root can be on the way to its own.
as_other_user() {
	local user=postgres read=+dac_read_search
	PROGRAM=("$@")
	[ "$(id -u)" -eq 0 ] || return 0
	id postgres >/dev/null 2>&1 || user=nobody
	chown -R "$user" "$TOP"/{data,etc,tmp,home}
	PROGRAM=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups)
	if "${PROGRAM[@]}" --inh-caps="$read" --ambient-caps="$read" true 2>/dev/null; then
		PROGRAM+=(--inh-caps="-all,$read" --ambient-caps="-all,$read")
	fi
	"${PROGRAM[@]}" ls "$TOP/etc" >/dev/null 2>&1 || die "user $user cannot enter $TOP: choose another SAFEDELIVR_SERVICES_DIR"
	PROGRAM+=("$@")
}

# Processes of a server overwrite their environment, and so lose the mark. They work in its data.
postgres_children() {
	local cwd
	for cwd in /proc/[0-9]*/cwd; do
		if [ "$cwd" -ef "$TOP/data" ]; then cut -d/ -f3 <<<"$cwd"; fi
	done
}

# auth_asked PORT: a connection to the database is answered by the request for a password.
auth_asked() {
	local got
	# shellcheck disable=SC2016
	got=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
		printf "\0\0\0\x2d\0\3\0\0user\0safedelivr\0database\0safedelivr\0\0" >&3 && head -c 1 <&3' _ "$1" 2>/dev/null) || return
	[ "$got" = R ]
}

postgres_answers() { auth_asked "$(postgres_port "$NODE")"; }

# Once per start: all standbys follow the primary.
postgres_ready() {
	local deadline=$((SECONDS + TIMEOUT))
	[ "${NODES_OF[postgres]}" -gt 1 ] && [ "$NODE" -eq "$(postgres_primary)" ] || return 0
	until [ "$(database_query "$(postgres_url "$NODE")" "SELECT 1 + count(*) FROM pg_stat_replication WHERE state = 'streaming'")" = "${NODES_OF[postgres]}" ]; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

database_query() { # URL STATEMENT
	PGCONNECT_TIMEOUT=5 "$(postgres_bin)/psql" -XAtq "$1" -c "$2" 2>/dev/null 9>&-
}

postgres_versions() {
	local role=''
	[ "${NODES_OF[postgres]}" -eq 1 ] || role=', primary'
	[ ! -e "$TOP/data/standby.signal" ] || role=', standby'
	printf 'PostgreSQL %s%s (%s)' "$(postgres_release)" "$role" "${ENGINE[postgres]}"
}
postgres_release() {
	if [ "${ENGINE[postgres]}" = docker ]; then
		docker exec "$(container postgres)" postgres --version
	else
		"$(postgres_bin)/postgres" --version
	fi | sed -nE 's/^[^0-9]*([0-9][^ ]*).*/\1/p'
}

# postgres_promote: make the primary of this standby, after the old one has ended. The other standbys follow it.
postgres_promote() {
	local old node
	old=$(postgres_node "$(postgres_primary)")
	[ "$old" != "${TOP##*/}" ] || die "$old is the primary already"
	[ -z "$(server_pid "$old")" ] || die "$old is the primary and runs; end it first: scripts/services kill $old"
	as_other_user "$(postgres_bin)/pg_ctl" promote --silent --pgdata="$TOP/data" --timeout="$TIMEOUT"
	env -i PATH="$PATH" "${PROGRAM[@]}" >&2 9>&- || die "${TOP##*/} cannot be promoted"
	printf '%d' "$NODE" >"$DIR/postgres/primary"
	for node in $(nodes_of postgres); do
		hook follow "$node"
		signal HUP "$(server_pid "$node")"
	done
	! running pgbouncer || {
		hook configure pgbouncer
		signal HUP "$(server_pid pgbouncer)"
	}
}

postgres_env() {
	local i urls=''
	printf 'export SAFEDELIVR_TEST_POSTGRES_URL=%s\n' "$(postgres_url "$(postgres_primary)")"
	if [ "${NODES_OF[postgres]}" -gt 1 ]; then
		for ((i = 1; i <= NODES_OF[postgres]; i++)); do urls+=,$(postgres_url "$i"); done
		printf 'export SAFEDELIVR_TEST_POSTGRES_URLS=%s\n' "${urls#,}"
	fi
	tls_env
}
