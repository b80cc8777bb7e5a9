# shellcheck shell=bash disable=SC2034
# Cassandra: jars, configuration, start, and whether it answers. Functions named cassandra_* are hooks.

CASSANDRA_VERSION=5.0.5
CASSANDRA_JARS=$JARS/cassandra-$CASSANDRA_VERSION
CASSANDRA_MAIN=org.apache.cassandra.service.CassandraDaemon

cassandra_settings() { printf 'CQL_PORT STORAGE_PORT HEAP CENTRES'; }
cassandra_ports() { [ "$NODE" -gt 1 ] || printf 'CQL_PORT STORAGE_PORT'; }
cassandra_process() { printf 'java'; }
cassandra_where() { printf 'cql 127.0.0.%s:%s' "$NODE" "$CQL_PORT"; }

# find_java: the home of a Java 17, else of a Java 11; Cassandra 5.0 runs on no other.
find_java() {
	local wanted home
	for wanted in 17 11; do
		for home in "${SAFEDELIVR_JAVA_HOME:-}" "${JAVA_HOME:-}" /usr/lib/jvm/* "$(java_on_path)"; do
			if [ -n "$home" ] && [ "$(java_major "$home")" = "$wanted" ]; then
				printf '%s' "$home"
				return
			fi
		done
	done
	return 1
}
java_on_path() {
	local java
	if java=$(command -v java); then dirname "$(dirname "$(readlink -f "$java")")"; fi
}
java_version() { # HOME
	if [ -r "$1/release" ]; then
		sed -nE 's/^JAVA_VERSION="([^"]*)".*/\1/p' "$1/release"
	elif [ -x "$1/bin/java" ]; then
		"$1/bin/java" -version 2>&1 | sed -nE '1s/.*"([^"]*)".*/\1/p'
	fi
}
java_major() {
	[ -x "$1/bin/java" ] || return 0
	java_version "$1" | cut -d. -f1
}

have_jars() { [ -e "$CASSANDRA_JARS/cassandra-all-$CASSANDRA_VERSION.jar" ]; }

cassandra_needs() {
	find_java >/dev/null || printf '%s\n' openjdk-17-jre-headless
	command -v openssl >/dev/null || printf 'openssl\n'
	have_jars || command -v mvn >/dev/null || printf 'maven\n'
}

cassandra_prepare() {
	find_java >/dev/null || die "no Java 17 or 11 found; set SAFEDELIVR_JAVA_HOME"
	have_jars || download_jars
}

download_jars() {
	local work
	mkdir -p "$JARS"
	work=$(mktemp -d "$JARS/work.XXXXXX")
	say "downloading Cassandra $CASSANDRA_VERSION from Maven Central (once, 66 MB)"
	if ! JAVA_HOME=$(find_java) mvn -B -q -C -f "$HERE/cassandra/pom.xml" -Dcassandra.version="$CASSANDRA_VERSION" \
		-Dmaven.repo.local="$work/repository" -Dmaven.wagon.http.retryHandler.count=5 \
		org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$work/jars" </dev/null >>"$DIR/install.log" 2>&1 9>&-; then
		tail -n 5 "$DIR/install.log" >&2
		rm -rf "$work"
		die "Maven could not download Cassandra (see $DIR/install.log)"
	fi
	# Appears whole or not at all; another folder's services may have been faster.
	mv -T "$work/jars" "$CASSANDRA_JARS" 2>/dev/null || have_jars || {
		rm -rf "$CASSANDRA_JARS"
		mv -T "$work/jars" "$CASSANDRA_JARS"
	}
	rm -rf "$work"
	have_jars || die "the download holds no cassandra-all-$CASSANDRA_VERSION.jar"
}

cassandra_configure() {
	local top=$TOP file i seeds='' nodes=${NODES_OF[cassandra]} delay=0 flush=true
	# All nodes are seeds: so they start side by side, and none of them looks for old data. Each
	# has an equal part of the ring.
	for ((i = 1; i <= nodes; i++)); do seeds+=,127.0.0.$i:$STORAGE_PORT; done
	[ "$nodes" -eq 1 ] || delay=1000
	# Tests make and drop keyspaces all the time. A single node is stopped softly, and flushes its
	# schema then; nodes of a cluster are killed, and find theirs at the start before the log is read.
	[ "$nodes" -gt 1 ] || flush=false
	[[ $HEAP =~ ^[0-9]+[kKmMgG]$ ]] || die "SAFEDELIVR_CASSANDRA_HEAP is a number with M or G, not $HEAP"
	[[ $CENTRES =~ ^[1-9]$ ]] || die "SAFEDELIVR_CASSANDRA_CENTRES is a number from 1 to 9, not $CENTRES"
	printf 'dc=datacenter%d\nrack=rack1\n' $(((NODE - 1) % CENTRES + 1)) >"$top/etc/rackdc.properties"
	server_certificate "127.0.0.$NODE"
	for file in cassandra.yaml logback.xml java.args; do
		fill "$HERE/cassandra/$file" "$top/etc/$file" CQL_PORT="$CQL_PORT" STORAGE_PORT="$STORAGE_PORT" \
			HEAP="$HEAP" DATA="$top/data" LOG="$top/log" ETC="$top/etc" TMP="$top/tmp" \
			ADDRESS="127.0.0.$NODE" SEEDS="${seeds#,}" TOKEN="$(ring_token "$nodes")" RING_DELAY="$delay" FLUSH_SCHEMA="$flush"
	done
}

# ring_token NODES: the first token of this node: 0, and the others evenly around the ring.
ring_token() {
	local token=0 i
	for ((i = 1; i < NODE; i++)); do token=$((token + (0x7fffffffffffffff / $1) * 2)); done
	printf '%d' "$token"
}

cassandra_start() {
	CLEAN_ENV=()
	# shellcheck disable=SC2086 # several options
	start_marked "${TOP##*/}" "$(find_java)/bin/java" "-javaagent:$(echo "$CASSANDRA_JARS"/jamm-*.jar)" \
		${SAFEDELIVR_CASSANDRA_JAVA:-} "@$TOP/etc/java.args" -cp "$CASSANDRA_JARS/*" "$CASSANDRA_MAIN"
}

cassandra_container_command() {
	CLEAN_ENV=()
	# shellcheck disable=SC2016
	COMMAND=(sh -c 'exec java "-javaagent:$(echo /opt/cassandra/lib/jamm-*.jar)" $3 "@$1" -cp "/opt/cassandra/lib/*" "$2"'
		sh "$TOP/etc/java.args" "$CASSANDRA_MAIN" "${SAFEDELIVR_CASSANDRA_JAVA:-}")
}

# cql_release TABLE: speak the native protocol (version 4): STARTUP, then a query for the release
# of this node (local) or of those that it knows (peers).
cql_release() {
	# shellcheck disable=SC2016
	timeout 15 bash -c '
		frame() { # OPCODE: read one frame, which must be of that kind, and print its body
			local head
			head=$(head -c 9 <&3 | od -An -v -tx1 | tr -d " \n")
			[ "${head:0:2}${head:8:2}" = "84$1" ] || exit 1
			head -c $((16#${head:10:8})) <&3
		}
		exec 3<>"/dev/tcp/$1/$2" || exit 1
		printf "\x04\0\0\1\1\0\0\0\x16\0\1\0\x0bCQL_VERSION\0\0053.0.0" >&3
		frame 02 >/dev/null || exit 1
		printf "\x04\0\0\2\7\0\0\0\x2f\0\0\0\x28SELECT release_version FROM system.$3\0\1\0" >&3
		frame 08 | tr -c "[:alnum:].-" "\n" | grep -E "^[0-9]+\.[0-9]"
	' _ "127.0.0.$NODE" "$CQL_PORT" "$1" 2>/dev/null
}

cassandra_answers() { [ -n "$(cql_release local)" ]; }
# Once per start: it knows the other nodes.
cassandra_ready() {
	local deadline=$((SECONDS + TIMEOUT))
	until [ "${NODES_OF[cassandra]}" -eq 1 ] || [ "$(cql_release peers | wc -l)" -eq $((NODES_OF[cassandra] - 1)) ]; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

cassandra_versions() {
	printf 'Cassandra %s, Java %s (%s)' "$(cql_release local)" "$(cassandra_java)" "${ENGINE[cassandra]}"
}
cassandra_java() {
	if [ "${ENGINE[cassandra]}" = docker ]; then
		docker exec "$(container cassandra)" java -version 2>&1 | sed -nE '1s/.*"([^"]*)".*/\1/p'
	else
		java_version "$(find_java)"
	fi
}

cassandra_env() {
	local i hosts=''
	for ((i = 1; i <= NODES_OF[cassandra]; i++)); do hosts+=,127.0.0.$i:$CQL_PORT; done
	printf 'export SAFEDELIVR_TEST_CASSANDRA_HOSTS=%s\n' "${hosts#,}"
	tls_env
}
