package safedelivr_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// registered returns the metrics of the product, with what Prometheus makes of histograms, and their families.
func registered(t *testing.T) (names, families map[string]bool) {
	t.Helper()
	declared := regexp.MustCompile(`"safedelivr_(\w+)"|(counter|histogram|gauge)\(\s*"(\w+)"|` +
		`(Histogram)?Opts\{\s*Namespace:\s*"safedelivr",\s*Name:\s*"(\w+)"`)
	names, families = map[string]bool{}, map[string]bool{}
	for _, path := range []string{"internal/app/metrics.go", "consumers/metrics.go"} {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range declared.FindAllStringSubmatch(string(raw), -1) {
			name := "safedelivr_" + m[1] + m[3] + m[5]
			families[name] = true
			if m[2] != "histogram" && m[4] == "" {
				names[name] = true
				continue
			}
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[name+suffix] = true
			}
		}
	}
	require.Greater(t, len(families), 20)
	return names, families
}

// used returns the metrics that a text names.
func used(text string) map[string]bool {
	found := map[string]bool{}
	for _, name := range regexp.MustCompile(`safedelivr_\w+`).FindAllString(text, -1) {
		found[name] = true
	}
	return found
}

// board returns the queries of the Grafana board.
func board(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("deploy/grafana/safedelivr.json")
	require.NoError(t, err)
	var b struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &b))
	var all []string
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			require.NotEmpty(t, target.Expr, p.Title)
			all = append(all, target.Expr)
		}
	}
	return strings.Join(all, "\n")
}

func TestBoardAndAlertsUseExistingMetrics(t *testing.T) {
	t.Parallel()
	names, _ := registered(t)
	alerts, err := os.ReadFile("deploy/prometheus/alerts.yaml")
	require.NoError(t, err)
	for where, text := range map[string]string{"the board": board(t), "the alerts": string(alerts)} {
		found := used(text)
		require.NotEmpty(t, found, where)
		for name := range found {
			require.True(t, names[name], "%s use %s, which does not exist", where, name)
		}
	}
}

func TestBoardShowsAllMetricsOfDocs(t *testing.T) {
	t.Parallel()
	_, families := registered(t)
	raw, err := os.ReadFile("docs/metrics.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
				listed["safedelivr_"+m[1]] = true
			}
		}
	}
	sorted := func(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
	require.Equal(t, sorted(families), sorted(listed), "docs/metrics.md lists each metric of the product")
	shown := map[string]bool{}
	for name := range used(board(t)) {
		shown[strings.TrimSuffix(name, "_bucket")] = true
	}
	require.Equal(t, sorted(families), sorted(shown), "the board shows each metric of the product")
}

// TestRunbook: each alert leads to its section of the runbook, which says what it means, where to look and what to do.
func TestRunbook(t *testing.T) {
	t.Parallel()
	alerts, err := os.ReadFile("deploy/prometheus/alerts.yaml")
	require.NoError(t, err)
	runbook, err := os.ReadFile("docs/runbook.md")
	require.NoError(t, err)
	names := regexp.MustCompile(`(?m)^      - alert: (\w+)$`).FindAllStringSubmatch(string(alerts), -1)
	require.Greater(t, len(names), 15)
	sections := strings.Split(string(runbook), "\n## ")[1:]
	require.Len(t, sections, len(names))
	for i, name := range names {
		require.True(t, strings.HasPrefix(sections[i], name[1]+"\n"), name[1])
		for _, part := range []string{"**Means.** ", "**Look.** ", "**Do.** "} {
			require.Contains(t, sections[i], part, name[1])
		}
		require.Contains(t, string(alerts), "docs/runbook.md#"+strings.ToLower(name[1])+"\n", name[1])
	}
}
