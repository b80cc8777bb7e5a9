package intake

import (
	"net/mail"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		in   string
		want models.Address
		err  error
	}{
		"plain":        {in: "ann@example.com", want: models.Address{Email: "ann@example.com"}},
		"space around": {in: " \tann@example.com\r\n", want: models.Address{Email: "ann@example.com"}},
		"with a name": {
			in:   "Ann Lee <ann@example.com>",
			want: models.Address{Email: "ann@example.com", Name: "Ann Lee"},
		},
		"brackets alone": {in: "<ann@example.com>", want: models.Address{Email: "ann@example.com"}},
		"quoted name with a comma": {
			in:   `"Lee, Ann" <ann@example.com>`,
			want: models.Address{Email: "ann@example.com", Name: "Lee, Ann"},
		},
		"quoted name with a quote": {
			in:   `"Ann \"A\" Lee" <ann@example.com>`,
			want: models.Address{Email: "ann@example.com", Name: `Ann "A" Lee`},
		},
		"name in UTF-8": {
			in:   "Zoë <zoe@example.com>",
			want: models.Address{Email: "zoe@example.com", Name: "Zoë"},
		},
		"encoded name": {
			in:   "=?utf-8?q?Zo=C3=AB?= <zoe@example.com>",
			want: models.Address{Email: "zoe@example.com", Name: "Zoë"},
		},
		"comment": {
			in:   "ann@example.com (Ann)",
			want: models.Address{Email: "ann@example.com", Name: "Ann"},
		},
		"comment before":  {in: "(home) ann@example.com", want: models.Address{Email: "ann@example.com"}},
		"comments inside": {in: "ann(home)@(at)example(dot).com", want: models.Address{Email: "ann@example.com"}},
		"comment in brackets": {
			in:   `Ann(x)Lee <(a (nested \) one)) ann@example.com(b)> (c)`,
			want: models.Address{Email: "ann@example.com", Name: "Ann Lee"},
		},
		"comment with an address": {in: "(<x@y.de>,) ann@example.com", want: models.Address{Email: "ann@example.com"}},
		"quoted parenthesis": {
			in:   `"Ann (home" <ann@example.com>`,
			want: models.Address{Email: "ann@example.com", Name: "Ann (home"},
		},
		"every letter of a dot-atom": {
			in:   "!#$%&'*+-/=?^_`{|}~.9Az@example.com",
			want: models.Address{Email: "!#$%&'*+-/=?^_`{|}~.9Az@example.com"},
		},
		"case of the domain":   {in: "Ann@EXAMPLE.Com", want: models.Address{Email: "Ann@example.com"}},
		"international domain": {in: "ann@bücher.example", want: models.Address{Email: "ann@xn--bcher-kva.example"}},
		"international, upper case": {
			in:   "Ann <ann@BÜCHER.example>",
			want: models.Address{Email: "ann@xn--bcher-kva.example", Name: "Ann"},
		},
		"ideographic dots": {in: "ann@例え。テスト", want: models.Address{Email: "ann@xn--r8jz45g.xn--zckzah"}},
		"sharp s is kept":  {in: "ann@straße.example", want: models.Address{Email: "ann@xn--strae-oqa.example"}},
		"punycode already": {
			in:   "ann@xn--bcher-kva.example",
			want: models.Address{Email: "ann@xn--bcher-kva.example"},
		},
		"quotes that are not needed": {in: `"ann"@example.com`, want: models.Address{Email: "ann@example.com"}},
		"longest local part":         {in: long + "@example.com", want: models.Address{Email: long + "@example.com"}},

		"open comment":             {in: "(home ann@example.com", err: errAddress},
		"comment without an end":   {in: "ann@example.com (home", err: errAddress},
		"comment alone":            {in: "(ann@example.com)", err: errAddress},
		"closed comment":           {in: "ann@example.com)", err: errAddress},
		"nothing":                  {in: "", err: errAddress},
		"space":                    {in: "  ", err: errAddress},
		"no @":                     {in: "ann.example.com", err: errAddress},
		"no local part":            {in: "@example.com", err: errAddress},
		"no domain":                {in: "ann@", err: errAddress},
		"two":                      {in: "ann@example.com, bob@example.com", err: errAddress},
		"two with a semicolon":     {in: "ann@example.com;bob@example.com", err: errAddress},
		"group":                    {in: "friends: ann@example.com, bob@example.com;", err: errAddress},
		"two @":                    {in: "ann@bob@example.com", err: errAddress},
		"quoted @":                 {in: `"ann@bob"@example.com`, err: errLocalPart},
		"quoted space":             {in: `"ann lee"@example.com`, err: errLocalPart},
		"dots in a row":            {in: "ann..lee@example.com", err: errLocalPart},
		"leading dot":              {in: ".ann@example.com", err: errLocalPart},
		"trailing dot":             {in: "ann.@example.com", err: errLocalPart},
		"international local part": {in: "zoë@example.com", err: errLocalPart},
		"long local part":          {in: long + "a@example.com", err: errLocalLong},
		"long": {
			in:  long + "@" + strings.Repeat(strings.Repeat("a", 60)+".", 3) + "aaaaaaaaaaaaa.com",
			err: errAddressLong,
		},
		"domain without a dot":         {in: "ann@localhost", err: errDomain},
		"domain ends with a dot":       {in: "ann@example.com.", err: errDomain},
		"empty label":                  {in: "ann@example..com", err: errDomain},
		"hyphen first":                 {in: "ann@-example.com", err: errDomain},
		"hyphen last":                  {in: "ann@example-.com", err: errDomain},
		"underscore":                   {in: "ann@ex_ample.com", err: errDomain},
		"long label":                   {in: "ann@" + strings.Repeat("a", 64) + ".com", err: errDomain},
		"IPv4":                         {in: "ann@10.0.0.1", err: errDomain},
		"address literal":              {in: "ann@[10.0.0.1]", err: errDomain},
		"broken punycode":              {in: "ann@xn--zz-zzz9.example", err: errDomain},
		"line break inside":            {in: "ann@example.com\r\nBcc: bob@example.com", err: errAddress},
		"line break in a quoted name":  {in: "\"Ann\r\nBcc: x\" <ann@example.com>", err: errAddress},
		"line break in an encoded one": {in: "=?utf-8?q?Ann=0D=0ABcc=3A_x?= <ann@example.com>", err: errNameControls},
		"NUL":                          {in: "ann\x00@example.com", err: errLocalPart},
		"broken UTF-8":                 {in: "ann@ex\xffample.com", err: errAddress},
		"replacement character":        {in: "ann@ex\ufffdample.com", err: errDomain},
		"broken UTF-8 in the name":     {in: "\"A\xff\" <ann@example.com>", err: errAddress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := ParseAddress(c.in)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, a)
		})
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"ann@example.com",
		`"Lee, Ann" <Ann@BÜCHER.example>`,
		"=?utf-8?q?a=0D?= <a@b.c>",
		`"a@b"@c.d`,
		"a@xn--bcher-kva.de",
		"ann@例え。テスト",
		"a@[1.2.3.4]",
		"a@b.c (comment (nested))",
		"<a@b.c>",
		"(x)a(y)@(z\\))b.c <d@e.f>",
		"a@b.0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		if strings.Count(a.Email, "@") != 1 ||
			strings.ContainsFunc(a.Email, func(r rune) bool { return r <= ' ' || r > '~' }) ||
			HasControls(a.Name) {
			t.Fatalf("%q became %q %q", s, a.Email, a.Name)
		}
		again, err := ParseAddress(a.Email)
		if err != nil || again.Email != a.Email || again.Name != "" {
			t.Fatalf("%q became %q, and that %q: %v", s, a.Email, again.Email, err)
		}
		if _, err := mail.ParseAddress(a.Email); err != nil {
			t.Fatalf("%q became %q: %v", s, a.Email, err)
		}
	})
}
