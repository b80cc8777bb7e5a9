package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// hashMembers returns a hash of the members of an object.
func hashMembers(members map[string][]byte) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		_, _ = fmt.Fprintf(h, "%q %d %s\n", name, len(members[name]), members[name]) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// maxRecords is the number of records that a request may have.
const maxRecords = 100_000

// putMessages is PUT /v1/messages.
func (s *Server) putMessages(c *gin.Context) {
	strict := c.Query("mode") == "strict"
	if _, err := permissiveMode(c); err != nil {
		s.fail(c, err)
		return
	}
	kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	e := c.GetHeader("Content-Encoding")
	switch {
	case c.Request.ContentLength > s.cfg.MaxBody:
		s.fail(c, bodyTooLarge(s.cfg.MaxBody))
	case e != "" && !strings.EqualFold(e, "identity"):
		s.fail(c, wrongEncoding())
	case err != nil, kind != "application/json" && kind != ndjson:
		s.fail(c, wrongType(c, c.Request.Body, map[byte]string{'[': "application/json", '{': ndjson},
			"The Content-Type must be application/json or "+ndjson+"."))
	default:
		body := http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody)
		dryRun := c.Query("dry_run") == "true"
		v, err := putMessages(c.Request.Context(), s.svc, caller(c), records{body, kind == ndjson, strict, dryRun})
		out := gin.H{"results": v}
		if dryRun {
			out["dry_run"] = true
		}
		answer(s, c, out, err)
	}
}

// records are those of a request or a file.
type records struct {
	Body   io.Reader // JSON: a list
	Lines  bool      // it has a record in each line instead
	Strict bool      // change nothing if a record is rejected
	DryRun bool      // change nothing, and say what each would do
}

// putMessages carries out records about messages, and returns the result of each.
func putMessages(
	ctx context.Context, svc *service.Service, who service.Caller, in records,
) ([]changes.Result, error) {
	i := svc.NewIntake(ctx, who)
	defer i.Close()
	rs := i.NewRecords()
	defer rs.Close()
	if err := readRecords(i, rs, in); err != nil {
		return nil, err
	}
	return svc.PutMessages(ctx, who, rs,
		service.RecordReader{Strict: in.Strict, DryRun: in.DryRun, Read: readRecord, Fill: fillRecords})
}

// readRecords reads all records, so that nothing is carried out of a request that cannot be read.
func readRecords(b *intake.Intake, rs *intake.Records, in records) error {
	defer b.Pause()
	j := newJSONReader(b.Body(in.Body))
	if !in.Lines {
		j.allow(maxBetween, somewhere)
		if t, err := j.Token(); err != nil {
			return j.jsonError(err)
		} else if t != json.Delim('[') {
			b.Wrong("", "wrong_type", "The request must be a list of records.")
			return b.Err()
		}
	}
	for j.more(maxBetween+maxEscape*b.ContentLeft(), b.ContentTooLarge) {
		var raw json.RawMessage
		if err := j.Decode(&raw); err != nil {
			return j.jsonError(err)
		}
		if rs.Count() == maxRecords {
			return service.Fail(service.TooLarge, "too_many_messages", "A request may have at most %d records.", maxRecords)
		}
		if err := rs.Add(raw); err != nil {
			return err
		}
	}
	if !in.Lines {
		if _, err := j.Token(); err != nil {
			return j.jsonError(err)
		}
	}
	j.allow(maxBetween, somewhere)
	if _, err := j.Token(); !errors.Is(err, io.EOF) {
		return j.jsonError(cmp.Or(err, errors.New("there is data after the end of the list")))
	}
	return nil
}

// ofRecipient reports whether a member of a record is about the recipient. The others are those of a batch.
func ofRecipient(name string) bool {
	return name == "to" || name == "name" || name == "vars" || name == "metadata" || name == "headers"
}

// headerNames returns the names of header fields, so that records with the same ones share a batch.
func headerNames(headers []byte) []byte {
	var names []string
	eachMember(headers, func(name string, _ []byte) { names = append(names, strings.ToLower(name)) })
	slices.Sort(names)
	return []byte(fmt.Sprintf("%q", names))
}

// noOption are members of a batch that a record does not have. One with cc or bcc could not share a batch.
var noOption = []string{"attachments", "allow_duplicates", "together", "cc", "bcc"}

// recordNames are the names of the members that a record may have.
var recordNames = append(slices.DeleteFunc(slices.Clone(intake.FieldNames), func(name string) bool {
	return slices.Contains(noOption, name)
}), "id", "action", "name", "vars", "metadata")

// readRecord decodes a record. The message itself is checked only if a version of it is sent.
func readRecord(raw []byte) *changes.Record {
	r := &changes.Record{Raw: raw, Action: changes.New}
	wrong := func(pointer, code, detail string) {
		if r.Wrong == nil {
			r.Wrong = &service.FieldError{Pointer: pointer, Code: code, Detail: detail}
		}
	}
	if raw[0] != '{' {
		wrong("", "wrong_type", "A record must be an object.")
		return r
	}
	if !validText(raw) {
		wrong("", "invalid_text", "The record is not valid Unicode text.")
		return r
	}
	all, options := map[string][]byte{}, map[string][]byte{}
	eachMember(raw, func(name string, value []byte) {
		_, again := all[name]
		switch text := value[0] == '"'; {
		case again:
			wrong(problem.Pointer(name), "repeated", problem.Quote(name)+" is repeated.")
		case name == "id" && text:
			r.ID = unquote(value)
		case name == "action" && text:
			r.Action = changes.Action(unquote(value))
		case name == "id", name == "action":
			wrong("/"+name, "wrong_type", name+" must be a string.")
		case slices.Contains(noOption, name):
			wrong(problem.Pointer(name), "unknown_field", "A record has no field with this name.")
		}
		all[name] = nil
		if name == "id" || name == "action" {
			return
		}
		switch all[name] = canonical(value); {
		case name == "headers" && value[0] == '{':
			options[name] = headerNames(value)
		case !ofRecipient(name):
			options[name] = all[name]
		}
	})
	if _, given := all["id"]; !given {
		wrong("/id", "required", "Add an id.")
	} else if err := clientid.Check(r.ID); err != nil {
		wrong("/id", "invalid_value", "The id is not valid: "+err.Error()+".")
	}
	if !r.Action.Valid() && r.Wrong == nil {
		r.Wrong = &service.FieldError{
			Pointer: "/action", Code: "invalid_action", Detail: "action must be new, update or cancel.",
		}
	}
	delete(all, "id")
	delete(all, "action")
	r.Hash, r.Group = hashMembers(all)[:32], hashMembers(options)
	return r
}

// canonical returns a JSON value without differences in spelling.
func canonical(raw []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return raw // it is nested too deeply
	}
	out, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return out
}

// fillRecords fills a request with the content of the first record and the recipients of all.
func fillRecords(in *intake.Intake, rs []*changes.Record) error {
	d := newDecoder(in)
	d.names = recordNames
	return d.read(func() (err error) {
		eachMember(rs[0].Raw, func(name string, value []byte) {
			if err == nil && name != "id" && name != "action" && !ofRecipient(name) {
				err = d.member(name, value)
			}
		})
		for i := 0; i < len(rs) && err == nil; i++ {
			err = d.add(d.record(rs[i]))
		}
		return err
	})
}

// record decodes the recipient of a record.
func (d *decoder) record(rec *changes.Record) *intake.Recipient {
	here, before, given := "/to/"+strconv.Itoa(d.Count()), d.Found(), false
	d.recipient = intake.Recipient{ClientID: rec.ID}
	r := &d.recipient
	eachMember(rec.Raw, func(name string, value []byte) {
		switch {
		case !ofRecipient(name), d.recipientMember(here, name, value, r):
		case value[0] != '"':
			given = true
			d.Wrong(here, "wrong_type", "to must be a string.")
		default:
			r.Email, given = unquote(value), true
		}
	})
	if !given {
		d.Wrong(here, "required", "Add the address of the recipient.")
	}
	r.Flawed = d.Found() > before
	return r
}
