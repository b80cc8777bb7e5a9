# shellcheck shell=bash disable=SC2034,SC2153
# PgBouncer in front of PostgreSQL, in transaction mode. Functions named pgbouncer_* are hooks.

pgbouncer_settings() { printf 'PGBOUNCER_PORT'; }
pgbouncer_ports() { printf 'PGBOUNCER_PORT'; }
pgbouncer_process() { printf 'pgbouncer'; }
pgbouncer_where() { printf 'postgres 127.0.0.1:%s' "$PGBOUNCER_PORT"; }
pgbouncer_needs() {
	PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || printf 'pgbouncer\n'
	postgres_needs
}

pgbouncer_prepare() {
	[[ " ${NAMES[*]} " == *' postgres '* ]] || running "$(postgres_node "$(postgres_primary)")" ||
		die "PostgreSQL does not run; start both: scripts/services up postgres pgbouncer"
}

pgbouncer_configure() {
	load_settings postgres
	server_certificate 127.0.0.1
	fill "$HERE/postgres/pgbouncer.ini" "$TOP/etc/pgbouncer.ini" PORT="$PGBOUNCER_PORT" \
		SERVER_PORT="$(postgres_port "$(postgres_primary)")" ETC="$TOP/etc"
	printf '"safedelivr" "safedelivr"\n' >"$TOP/etc/userlist.txt"
}

pgbouncer_start() {
	CLEAN_ENV=(PATH="$PATH:/usr/sbin")
	as_other_user pgbouncer "$TOP/etc/pgbouncer.ini"
	start_marked "${TOP##*/}" "${PROGRAM[@]}"
}

pgbouncer_answers() { auth_asked "$PGBOUNCER_PORT"; }

# Once per start: a query goes through it.
pgbouncer_ready() {
	local deadline=$((SECONDS + TIMEOUT))
	until [ "$(database_query "$(pgbouncer_url)" 'SELECT 1')" = 1 ]; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

pgbouncer_versions() { printf 'PgBouncer %s (packages)' "$(PATH=$PATH:/usr/sbin pgbouncer --version | sed -n '1s/^[^0-9]*//p')"; }
pgbouncer_url() { printf 'postgres://safedelivr:safedelivr@127.0.0.1:%d/safedelivr' "$PGBOUNCER_PORT"; }
pgbouncer_env() { printf 'export SAFEDELIVR_TEST_PGBOUNCER_URL=%s\n' "$(pgbouncer_url)"; }
