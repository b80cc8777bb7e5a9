# shellcheck shell=bash disable=SC2034
# The same servers, with the same configuration, as containers on the host's network.

image_of() {
	case $1 in
	rabbitmq) printf '%s' "${SAFEDELIVR_RABBIT_IMAGE:-rabbitmq:3.13-management}" ;;
	cassandra) printf '%s' "${SAFEDELIVR_CASSANDRA_IMAGE:-cassandra:5.0}" ;;
	postgres) printf '%s' "${SAFEDELIVR_POSTGRES_IMAGE:-postgres:17}" ;;
	esac
}

container() { printf 'safedelivr-%s-%s' "$1" "$(printf '%s' "$DIR" | cksum | cut -d' ' -f1)"; }

# pick_engine KEEP NAME: docker where an engine answers and has or gets the image. Data that is
# kept stays with what wrote it: the versions differ.
pick_engine() {
	local name=$2 choice=${SAFEDELIVR_SERVICES_ENGINE:-auto}
	if [ "$1" = yes ] && [ -s "$DIR/$name/engine" ]; then
		ENGINE["$name"]=$(cat "$DIR/$name/engine")
		return
	fi
	if [ "${NODES_OF[${name%%-*}]}" -gt 1 ]; then
		[ "$choice" != docker ] || die "several nodes run as processes only: SAFEDELIVR_SERVICES_ENGINE=packages"
		choice=packages
	fi
	[ "$name" != pgbouncer ] || choice=packages
	case $choice in
	packages) ;;
	docker) docker_answers || die "no docker engine answers" ;;
	auto) docker_answers || choice=packages ;;
	*) die "SAFEDELIVR_SERVICES_ENGINE is auto, docker or packages, not $choice" ;;
	esac
	ENGINE["$name"]=packages
	if [ "$choice" = packages ]; then
		return
	elif have_image "$(image_of "$name")"; then
		ENGINE["$name"]=docker
	elif [ "$choice" = docker ]; then
		die "image $(image_of "$name") cannot be had"
	else
		say "image $(image_of "$name") cannot be had: $name runs as a process (SAFEDELIVR_SERVICES_ENGINE=packages skips the attempt)"
	fi
}

docker_answers() { command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; }
have_image() {
	docker image inspect "$1" >/dev/null 2>&1 && return
	say "pulling $1"
	timeout 900 docker pull -q "$1" >/dev/null 2>&1
}

start_in_docker() {
	local name=$1 pair options=()
	docker rm -f "$(container "$name")" >/dev/null 2>&1 || true
	hook container_command "$name"
	for pair in "${CLEAN_ENV[@]}"; do options+=(-e "$pair"); done
	# Its own user and its own folder, so that files and processes stay in reach of the tests.
	# The limit is set inside: the engine may not be allowed to raise it, or gives a billion.
	# shellcheck disable=SC2016
	docker run -d --name "$(container "$name")" --network host --user "$(id -u):$(id -g)" \
		-v "$DIR/$name:$DIR/$name" -w "$DIR/$name/tmp" \
		-e HOME="$DIR/$name/home" -e TMPDIR="$DIR/$name/tmp" "${options[@]}" \
		--entrypoint sh "$(image_of "$name")" \
		-c 'ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"; exec "$@"' sh "${COMMAND[@]}" >/dev/null 9>&- && return
	docker rm -f "$(container "$name")" >/dev/null 2>&1 || true
	say "$name: the container does not start (SAFEDELIVR_SERVICES_ENGINE=packages runs it as a process)"
	return 1
}

container_runs() { [ "$(docker inspect -f '{{.State.Running}}' "$(container "$1")" 2>/dev/null)" = true ]; }
container_pid() { docker top "$(container "$1")" -eo pid,comm 2>/dev/null | awk -v comm="$2" '$2 == comm { print $1; exit }'; }
container_log() { docker logs --tail 25 "$(container "$1")" 2>&1 || true; }
container_stop() {
	signal CONT "$(container_pid "$1" "$(hook process "$1")")"
	docker stop -t "$GRACE" "$(container "$1")" >/dev/null 2>&1 || true
	docker rm -f "$(container "$1")" >/dev/null 2>&1 || true
	! container_runs "$1" || die "$1: the container does not end"
}
