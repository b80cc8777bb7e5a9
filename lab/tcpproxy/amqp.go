package tcpproxy

import (
	"bytes"
	"encoding/binary"
)

// frames divides what a client of AMQP 0-9-1 sends into frames. What clients of other protocols send stays as it is.
type frames struct {
	known, amqp bool
	rest        []byte // the beginning of a frame
}

// The header of the protocol, which is what a client sends first, and the sizes of a frame without its payload.
const (
	amqpHeader = "AMQP\x00\x00\x09\x01"
	frameHead  = 7 // type, channel, size of the payload
	frameEnd   = 1
)

// take returns the whole frames of what has been sent, and keeps the beginning of another one. It leaves out
// acknowledgements if they are lost.
func (f *frames) take(sent []byte, lost bool) []byte {
	if !f.known {
		f.rest = append(f.rest, sent...)
		if len(f.rest) < len(amqpHeader) && bytes.HasPrefix([]byte(amqpHeader), f.rest) {
			return nil
		}
		f.known, f.amqp = true, bytes.HasPrefix(f.rest, []byte(amqpHeader))
		n := len(f.rest)
		if f.amqp {
			n = len(amqpHeader)
		}
		begin := f.rest[:n]
		sent, f.rest = f.rest[n:], nil
		return append(bytes.Clone(begin), f.take(sent, lost)...)
	}
	if !f.amqp {
		return sent
	}
	f.rest = append(f.rest, sent...)
	var out []byte
	for len(f.rest) >= frameHead {
		n := frameHead + int(binary.BigEndian.Uint32(f.rest[3:])) + frameEnd
		if len(f.rest) < n {
			break
		}
		if !lost || !isAck(f.rest[:n]) {
			out = append(out, f.rest[:n]...)
		}
		f.rest = f.rest[n:]
	}
	return out
}

// isAck reports whether a frame is basic.ack, basic.reject or basic.nack.
func isAck(frame []byte) bool {
	const method, basic, ack, reject, nack = 1, 60, 80, 90, 120
	if frame[0] != method || len(frame) < frameHead+4+frameEnd || binary.BigEndian.Uint16(frame[frameHead:]) != basic {
		return false
	}
	switch binary.BigEndian.Uint16(frame[frameHead+2:]) {
	case ack, reject, nack:
		return true
	}
	return false
}
