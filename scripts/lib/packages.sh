# shellcheck shell=bash
# Servers as plain processes: what they need from the distribution, and their start.

start_in_packages() { hook start "$1"; }

# install_missing NAME...: what the chosen services lack, in one go.
install_missing() {
	local name packages=()
	for name; do
		[ "${ENGINE[$name]}" = packages ] || continue
		mapfile -t -O "${#packages[@]}" packages < <(hook needs "$name")
	done
	if [ "${#packages[@]}" -gt 0 ]; then
		apt_install "${packages[@]}"
	fi
	for name; do
		[ "${ENGINE[$name]}" != packages ] || hook prepare "$name"
	done
}

apt_install() {
	local command="apt-get install --no-install-recommends $*"
	command -v apt-get >/dev/null || die "missing, and no apt-get here to install it: $*"
	[ "$(id -u)" -eq 0 ] || die "missing: $*. Run as root (or run scripts/services up once as root): $command"
	say "$command"
	export DEBIAN_FRONTEND=noninteractive
	# Nothing that is installed may start a system service, now or at the next boot.
	forbid_service_start
	if ! apt_get install "$@" && ! { apt_get update && apt_get install "$@"; }; then
		tail -n 5 "$DIR/install.log" >&2
		die "could not install: $* (see $DIR/install.log)"
	fi
	allow_service_start
	forbid_boot_start "$@"
}

# forbid_boot_start PACKAGE...: keep the system services of these from starting with the machine.
forbid_boot_start() {
	local package
	command -v systemctl >/dev/null || return 0
	for package; do
		case $package in
		rabbitmq-server) systemctl disable rabbitmq-server.service epmd.service epmd.socket ;;
		postgresql | pgbouncer) systemctl disable "$package.service" ;;
		esac >/dev/null 2>&1 || true
	done
}

apt_get() {
	apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends "$@" </dev/null >>"$DIR/install.log" 2>&1 9>&-
}

POLICY=/usr/sbin/policy-rc.d
forbid_service_start() {
	local code=0
	trap allow_service_start EXIT
	if [ -e "$POLICY" ]; then
		"$POLICY" rabbitmq-server start >/dev/null 2>&1 || code=$?
		[ "$code" -ne 101 ] || return 0
		mv "$POLICY" "$POLICY.safedelivr-saved"
	fi
	printf '#!/bin/sh\n# placed by safedelivr scripts/services while it installs\nexit 101\n' >"$POLICY"
	chmod 755 "$POLICY"
}
allow_service_start() {
	trap - EXIT
	! grep -q 'placed by safedelivr' "$POLICY" 2>/dev/null || rm -f "$POLICY"
	[ ! -e "$POLICY.safedelivr-saved" ] || mv "$POLICY.safedelivr-saved" "$POLICY"
}
