package tcpproxy

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// frame returns a method frame of AMQP.
func frame(class, method uint16, arguments string) []byte {
	payload := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), method)
	payload = append(payload, arguments...)
	out := append([]byte{1, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return append(append(out, payload...), 0xCE)
}

// TestAcksAreLost: only acknowledgements of AMQP are lost, wherever what the client sends is divided.
func TestAcksAreLost(t *testing.T) {
	t.Parallel()
	publish, ack := frame(60, 40, "route"), frame(60, 80, "12345678\x00")
	body := []byte{3, 0, 1, 0, 0, 0, 2, 'h', 'i', 0xCE}
	var sent, kept []byte
	sent = append(sent, amqpHeader...)
	kept = append(kept, amqpHeader...)
	for _, f := range [][]byte{publish, body, publish, body} {
		sent = append(append(append(append(sent, f...), ack...), frame(60, 90, "x")...), frame(60, 120, "x")...)
		kept = append(kept, f...)
	}
	for size := 1; size <= len(sent); size++ {
		var all, some []byte
		whole, lossy := &frames{}, &frames{}
		for rest := sent; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			part := rest[:min(size, len(rest))]
			all = append(all, whole.take(part, false)...)
			some = append(some, lossy.take(part, true)...)
		}
		require.Equal(t, sent, all, "parts of %d bytes", size)
		require.Equal(t, kept, some, "parts of %d bytes", size)
	}
	for _, text := range []string{"A", "AMQX is not AMQP", "GET / HTTP/1.1\r\n", "AMQP\x00\x01\x00\x00"} {
		f, got := &frames{}, ""
		for i := range text {
			got += string(f.take([]byte(text[i:i+1]), true))
		}
		if text == "A" { // it may become a header
			require.Empty(t, got)
			continue
		}
		require.Equal(t, text, got)
	}
}
