# shellcheck shell=bash
# Tools that the tests need: found, or installed where that is allowed. Sourced by scripts/test.

TOOLS=${XDG_CACHE_HOME:-${HOME:?}/.cache}/safedelivr/tools
declare -A TOOL=(
	[golangci-lint]=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	[govulncheck]=golang.org/x/vuln/cmd/govulncheck@v1.9.0
)
AXE_VERSION=4.14.1 # axe-core, which looks for what keeps people out

# tool NAME: print the path of a Go program, which is installed if it is not there.
tool() {
	local folder=$TOOLS/$1-${TOOL[$1]##*@}
	[ -x "$folder/$1" ] || GOFLAGS=-ldflags=-s GOBIN=$folder go install "${TOOL[$1]}" || return
	printf '%s' "$folder/$1"
}

# axe: print the path of axe-core.
axe() {
	local folder=$TOOLS/axe-core-$AXE_VERSION
	[ -s "$folder/axe.min.js" ] || {
		mkdir -p "$folder" && cd "$folder" && npm pack --silent "axe-core@$AXE_VERSION" >/dev/null &&
			tar -xzf "axe-core-$AXE_VERSION.tgz" --strip-components=1 package/axe.min.js package/LICENSE
	} || return
	printf '%s' "$folder/axe.min.js"
}

# need TEST PACKAGE...: install packages if a command or a test fails.
need() {
	local test=$1
	shift
	! eval "$test" >/dev/null 2>&1 || return 0
	if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
		echo "missing: apt-get install $*"
		return 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq -y --no-install-recommends install "$@" ||
		{ apt-get -qq update && apt-get -qq -y --no-install-recommends install "$@"; }
}

# tools GATE: all that a gate needs beside Go.
tools() {
	local code=0 program
	PATH=$PATH:/usr/sbin
	for program in gcc shellcheck git curl openssl npm; do need "command -v $program" "$program" || code=1; done
	need 'echo "#include <stdlib.h>" | gcc -E -' libc6-dev || code=1 # for the race detector
	[ -n "${SAFEDELIVR_TEST_CHROMIUM:-}" ] || need 'command -v chromium-headless-shell' chromium-headless-shell || code=1
	need 'command -v zsh' zsh || code=1 # people paste lines of the documents into both shells
	[ "$1" = full ] || return "$code"
	need 'command -v php' php-cli || code=1 # these three verify posts as docs/endpoints.md says
	need 'command -v ruby' ruby || code=1
	need 'python3 -c "import cryptography"' python3-cryptography || code=1
	need 'command -v javac && command -v mvn' default-jdk-headless maven || code=1 # Jakarta Mail and Keycloak's mail
	need 'command -v nginx' nginx-light || code=1 # the examples of docs/proxy.md
	need 'command -v caddy' caddy || code=1
	need 'command -v dovecot' dovecot-imapd || code=1 # an IMAP server
	need 'ruby -e "require \"action_mailer\""' ruby-actionmailer || code=1 # the recipes
	need '[ -d /usr/share/php/Illuminate/Http ]' php-symfony-mailer php-illuminate-http php-guzzlehttp-guzzle || code=1
	# Applications of PHP speak the API of Mailgun with it.
	need '[ -d /usr/share/php/Symfony/Component/Mailer/Bridge/Mailgun ]' php-symfony-mailgun-mailer php-symfony-http-client php-curl || code=1
	need 'python3 -m pip --version' python3-pip || code=1 # schemas of Kubernetes and the client in Python
	need 'python3 -c "import ensurepip"' python3-venv || code=1
	# shellcheck disable=SC2016 # need expands it
	need '[ "$(node --version | tr -dc 0-9. | cut -d. -f1)" -ge 20 ]' nodejs || code=1
	return "$code"
}
