package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// base is a raw figure for comparison.
type base struct {
	name  string
	value float64
}

type line struct {
	backend, title, unit, detail string
	value                        float64
	bases                        []base
}

// report collects the lines of the table.
type report struct {
	lines []line
	small bool
}

func (t *report) add(be *backend, title string, value float64, unit, detail string, bases ...base) *line {
	l := line{be.title, title, unit, detail, value, bases}
	t.lines = append(t.lines, l)
	fmt.Fprintf(os.Stderr, "  %s %s (%s); %s\n", figure(value), unit, detail, l.held())
	return &l
}

// atMost returns an error if the figure is more than aim times its first raw figure.
func (l *line) atMost(aim float64) error {
	if l.value <= aim*l.bases[0].value {
		return nil
	}
	return fmt.Errorf("%s: %s; the aim is at most %.1f", l.title, l.held(), aim)
}

// atLeast returns an error if the figure is less than aim times its first raw figure.
func (l *line) atLeast(aim float64) error {
	if l.value >= aim*l.bases[0].value {
		return nil
	}
	return fmt.Errorf("%s: %s; the aim is at least %.1f", l.title, l.held(), aim)
}

// held formats the raw figures and the part of them that the product reaches.
func (l *line) held() string {
	var parts []string
	for _, b := range l.bases {
		parts = append(parts, fmt.Sprintf("%s %s: %.2f of it", b.name, figure(b.value), l.value/b.value))
	}
	return strings.Join(parts, "; ")
}

func (t *report) print(w io.Writer, versions string) {
	fmt.Fprintf(w, "# Benchmarks\n\nWritten by `scripts/bench` on %s.", time.Now().UTC().Format(time.DateOnly))
	if t.small {
		fmt.Fprint(w, " **Small sizes, one run each: not for comparisons.**")
	}
	fmt.Fprintf(w, "\n\nMachine: %s. %s, %s.", machine(), runtime.Version(), kernel())
	if versions != "" {
		fmt.Fprintf(w, " %s.", versions)
	}
	fmt.Fprint(w, " Product, simulated providers, servers and the driver share the processors; "+
		"product and simulator are separate processes. Figures are medians of several runs; "+
		"those of urgent mail and failover are medians of one run with many samples, those of memory are from one run. "+
		"Each raw figure was measured in the same run: the cost of the same bytes without the product's promises.\n")
	backend := ""
	for i := range t.lines {
		l := &t.lines[i]
		if l.backend != backend {
			backend = l.backend
			fmt.Fprintf(w, "\n## On %s\n\n| what | reached | raw, and the part reached of it | |\n|---|---|---|---|\n", backend)
		}
		fmt.Fprintf(w, "| %s | %s %s | %s | %s |\n", l.title, figure(l.value), l.unit, l.held(), l.detail)
	}
}

// write writes the table to a file. It keeps the sections below the tables.
func (t *report) write(path, versions string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var b bytes.Buffer
	t.print(&b, versions)
	b.WriteString(afterTables(string(old)))
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// afterTables returns the part of a report after its tables: from the first section that
// is not about a backend.
func afterTables(text string) string {
	for at := 0; ; {
		n := strings.Index(text[at:], "\n## ")
		if n < 0 {
			return ""
		}
		if at += n; !strings.HasPrefix(text[at:], "\n## On ") {
			return text[at:]
		}
		at++
	}
}

func machine() string {
	memory := "?"
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "MemTotal:"); ok {
			if kib, err := strconv.Atoi(strings.Fields(rest)[0]); err == nil {
				memory = fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
			}
		}
	}
	model := ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "model name"); ok {
			name, _, _ := strings.Cut(rest, "\n")
			model = " (" + strings.TrimSpace(strings.TrimLeft(name, "\t :")) + ")"
		}
	}
	return fmt.Sprintf("%d cores%s, %s of memory", runtime.NumCPU(), model, memory)
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(text))
}

// figure rounds to three digits and separates thousands.
func figure(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	n := int64(v)
	for unit := int64(10); ; unit *= 10 {
		if n/unit < 100 {
			return thousands((n + unit/20) / (unit / 10) * (unit / 10))
		}
	}
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func short(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) + " ms"
}
