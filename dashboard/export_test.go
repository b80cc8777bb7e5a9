package dashboard

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

func TestExport(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	var to []service.Recipient
	for i := range 1203 {
		to = append(to, service.Recipient{Email: fmt.Sprintf("r%d@example.com", i), Name: "=1+1"})
	}
	id := f.batchOf("local", nil, to...)
	a := b.get("/batches/" + id.String() + "/export.csv")
	require.Contains(t, a.Header.Get("Content-Disposition"), "attachment")
	rows, err := csv.NewReader(strings.NewReader(a.text)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1204)
	require.Equal(t, "r1202@example.com", rows[1203][1])
	require.Equal(t, "'=1+1", rows[1][3], "a formula is not quoted")
}

// TestExportOfMetadata: tags, category and metadata of the batch and of its recipients have
// columns; keys that only later recipients have are in the last one.
func TestExportOfMetadata(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	in := f.service.NewIntake(t.Context(), service.Caller{User: "local"})
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "s", Text: "t", Category: "receipts",
		Tags: []string{"march", "vip"}, Metadata: map[string]string{"campaign": "7", "shop": "vienna"}}
	var to []service.Recipient
	for i := range 500 + 1 {
		r := service.Recipient{Email: fmt.Sprintf("r%d@example.com", i)}
		r.Metadata = map[string]string{"order": strconv.Itoa(i)}
		if i == 500 {
			r.Metadata = map[string]string{"late": "yes", "shop": "graz"}
		}
		to = append(to, r)
	}
	require.NoError(t, in.Read(intake.Of(to...)))
	a, _, err := f.service.Accept(t.Context(), service.Caller{User: "local"}, in, service.Repeat{})
	require.NoError(t, err)
	text := f.byLink(login.LocalUser()).get("/batches/" + a.ID.String() + "/export.csv").text
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err)
	at := slices.Index(rows[0], "tags")
	require.Equal(
		t,
		[]string{"tags", "category", "metadata.campaign", "metadata.order", "metadata.shop", "other_metadata"},
		rows[0][at:],
	)
	require.Equal(t, []string{"march, vip", "receipts", "7", "3", "vienna", ""}, rows[4][at:])
	require.Equal(t, []string{"march, vip", "receipts", "7", "", "graz", `{"late":"yes"}`}, rows[500+1][at:])
}
