package liquid

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/shopspring/decimal"
)

// Numbers are as in the reference implementation (Shopify/liquid, standardfilters.rb): whole numbers are exact, others
// are calculated as decimals, and a result that is not whole is a floating-point number again.

// float is a floating-point number that is written as a decimal: 1234567.5, not 1.2345675e+06.
type float float64

// String implements fmt.Stringer. A whole number has .0, as in the reference.
func (f float) String() string {
	if math.IsInf(float64(f), 0) || math.IsNaN(float64(f)) {
		return fmt.Sprint(float64(f))
	}
	s := strconv.FormatFloat(float64(f), 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// maxDigits is how many digits the whole part of a number may have. It bounds the work of one filter.
const maxDigits = 400

var (
	errDivision   = errors.New("divided by 0")
	errLongNumber = fmt.Errorf("a number has more than %d digits", maxDigits)

	decimalText = regexp.MustCompile(`^-?\d+\.\d+$`)
	wholeText   = regexp.MustCompile(`^[+-]?\d+`)
)

// numeral is a number of a filter.
type numeral struct {
	d     decimal.Decimal
	whole bool // it is an integer, not only its value
}

// numberOf returns a value as a number. As in the reference, text counts as the number at its beginning, and everything
// else as 0.
func numberOf(v any) (n numeral, err error) {
	switch r := reflect.ValueOf(v); r.Kind() { // all others are 0
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return numeral{decimal.NewFromInt(r.Int()), true}, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return numeral{decimal.NewFromUint64(r.Uint()), true}, nil
	case reflect.Float32, reflect.Float64:
		f := r.Float()
		if math.IsInf(f, 0) || math.IsNaN(f) {
			return n, errLongNumber
		}
		return numeral{d: decimal.NewFromFloat(f)}, nil
	case reflect.String:
		text, whole := strings.TrimSpace(r.String()), false
		if !decimalText.MatchString(text) {
			text, whole = wholeText.FindString(text), true
		}
		if len(text) > maxDigits {
			return n, errLongNumber
		}
		if text == "" {
			return numeral{whole: true}, nil
		}
		d, err := decimal.NewFromString(text)
		return numeral{d, whole}, err
	}
	return numeral{whole: true}, nil
}

// value returns the number as Liquid knows it: an int, the digits of an integer that is longer, or a float.
func (n numeral) value() (any, error) {
	if !n.whole {
		f, _ := n.d.Float64() // the nearest one
		if math.IsInf(f, 0) {
			return nil, errLongNumber
		}
		return float(f), nil
	}
	i := n.d.BigInt()
	switch {
	case i.IsInt64():
		return int(i.Int64()), nil
	case i.BitLen() > maxDigits*10/3:
		return nil, errLongNumber
	}
	return json.Number(i.String()), nil
}

// calculation is a filter of two numbers.
type calculation func(a, b numeral) (numeral, error)

// filter returns the calculation as a filter.
func (c calculation) filter() filter {
	return filter{1, 1, func(v any, args []any) (any, error) {
		x, err := numberOf(v)
		if err != nil {
			return nil, err
		}
		y, err := numberOf(args[0])
		if err != nil {
			return nil, err
		}
		n, err := c(x, y)
		if err != nil {
			return nil, err
		}
		return n.value()
	}}
}

var numberFilters = map[string]filter{
	"plus":       exact(decimal.Decimal.Add).filter(),
	"minus":      exact(decimal.Decimal.Sub).filter(),
	"times":      exact(decimal.Decimal.Mul).filter(),
	"divided_by": calculation(divide).filter(),
	"modulo":     calculation(modulo).filter(),
	"at_least":   pick(decimal.Decimal.GreaterThanOrEqual).filter(),
	"at_most":    pick(decimal.Decimal.LessThanOrEqual).filter(),
	"ceil":       rounded(decimal.Decimal.Ceil),
	"floor":      rounded(decimal.Decimal.Floor),
	"round":      {0, 1, round},
	"abs":        {0, 0, absolute},
}

// exact returns a calculation that is whole if both numbers are.
func exact(do func(a, b decimal.Decimal) decimal.Decimal) calculation {
	return func(a, b numeral) (numeral, error) { return numeral{do(a.d, b.d), a.whole && b.whole}, nil }
}

// divide divides. The quotient of integers is the integer below it.
func divide(a, b numeral) (numeral, error) {
	switch {
	case b.d.IsZero():
		return numeral{}, errDivision
	case a.whole && b.whole:
		q, _ := floorDiv(a.d.BigInt(), b.d.BigInt())
		return numeral{decimal.NewFromBigInt(q, 0), true}, nil
	}
	return numeral{d: a.d.DivRound(b.d, 30)}, nil
}

// modulo returns the remainder of a division. It has the sign of the divisor.
func modulo(a, b numeral) (numeral, error) {
	switch {
	case b.d.IsZero():
		return numeral{}, errDivision
	case a.whole && b.whole:
		_, r := floorDiv(a.d.BigInt(), b.d.BigInt())
		return numeral{decimal.NewFromBigInt(r, 0), true}, nil
	}
	r := a.d.Mod(b.d)
	if !r.IsZero() && r.IsNegative() != b.d.IsNegative() {
		r = r.Add(b.d)
	}
	return numeral{d: r}, nil
}

// floorDiv divides and rounds down.
func floorDiv(a, b *big.Int) (q, r *big.Int) {
	q, r = new(big.Int).QuoRem(a, b, new(big.Int))
	if r.Sign() != 0 && r.Sign() != b.Sign() {
		q.Sub(q, big.NewInt(1))
		r.Add(r, b)
	}
	return q, r
}

// rounded is a filter that makes a number whole.
func rounded(do func(decimal.Decimal) decimal.Decimal) filter {
	return filter{0, 0, func(v any, _ []any) (any, error) {
		n, err := numberOf(v)
		if err != nil {
			return nil, err
		}
		return numeral{do(n.d), true}.value()
	}}
}

// round rounds to a number of places after the point; half away from zero.
func round(v any, args []any) (any, error) {
	n, err := numberOf(v)
	if err != nil {
		return nil, err
	}
	places, err := integer(optional(args, 0, 0))
	if err != nil {
		return nil, err
	}
	p := min(max(places, -maxDigits), maxDigits)
	return numeral{n.d.Round(int32(p)), p == 0 || n.whole}.value()
}

// absolute returns a number without its sign.
func absolute(v any, _ []any) (any, error) {
	n, err := numberOf(v)
	if err != nil {
		return nil, err
	}
	return numeral{n.d.Abs(), n.whole}.value()
}

// pick returns a calculation that returns one of its numbers.
func pick(first func(a, b decimal.Decimal) bool) calculation {
	return func(a, b numeral) (numeral, error) {
		if first(a.d, b.d) {
			return a, nil
		}
		return b, nil
	}
}

// Decimal returns a number as an output shows it. It has no exponent.
func Decimal(f float64) string { return float(f).String() }

// plain returns a value as it is written: no number has an exponent.
func plain(v any) any {
	if f, ok := v.(float64); ok {
		return float(f)
	}
	return v
}

// isNumber reports whether a value is a number. Text is none, also if it has one.
func isNumber(v any) bool {
	switch v.(type) {
	case int, float64, float, json.Number:
		return true
	}
	return false
}
