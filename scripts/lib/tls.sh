# shellcheck shell=bash
# A CA for tests, and certificates by it. Sourced by scripts/services.

# server_certificate ADDRESS: in etc of the server the files ca.pem, server.pem (certificate and key),
# and in the folder of the services client.pem and client.key for the tests.
server_certificate() {
	local etc=$TOP/etc
	make_authority
	cp "$DIR/tls/ca.pem" "$etc/ca.pem"
	sign server "subjectAltName=IP:$1" "$etc/server-cert.pem" "$etc/server-key.pem"
	cat "$etc/server-key.pem" "$etc/server-cert.pem" >"$etc/server.pem"
}

make_authority() {
	[ ! -s "$DIR/tls/client.pem" ] || return 0
	rm -rf "$DIR/tls"
	mkdir -p "$DIR/tls"
	new_key "$DIR/tls/ca.key"
	openssl req -x509 -new -key "$DIR/tls/ca.key" -subj "/CN=safedelivr tests" -days 3650 -sha256 \
		-addext keyUsage=critical,keyCertSign -out "$DIR/tls/ca.pem" 2>>"$DIR/tls/log" || die "openssl fails: see $DIR/tls/log"
	sign client subjectAltName=DNS:client "$DIR/tls/client.pem" "$DIR/tls/client.key"
}

new_key() { (umask 077 && openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>>"$DIR/tls/log"); }

# sign NAME EXTENSION CERTIFICATE KEY
sign() {
	new_key "$4"
	openssl req -new -key "$4" -subj "/CN=$1" 2>>"$DIR/tls/log" |
		openssl x509 -req -CA "$DIR/tls/ca.pem" -CAkey "$DIR/tls/ca.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 -sha256 \
			-extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "$2") -out "$3" 2>>"$DIR/tls/log" ||
		die "openssl fails: see $DIR/tls/log"
}

# tls_env: where the tests find the CA and their own certificate.
tls_env() { printf 'export SAFEDELIVR_TEST_TLS=%s\n' "$DIR/tls"; }
