package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// figures are those of a row in all rounds, of the build before and of this one.
type figures struct {
	unit   string
	values [2][]float64
}

// compare measures two builds of the product by turns, each first in every second round. It prints the ratios of their
// figures. Its error names the rows that are worse in every round.
func (b *bench) compare(other string, rounds int, measure func() error) error {
	rows, products := map[string]*figures{}, [2]string{other, b.product}
	note := func(build int, row, unit string, value float64) {
		if rows[row] == nil {
			rows[row] = &figures{unit: unit}
		}
		rows[row].values[build] = append(rows[row].values[build], value)
	}
	for round := range rounds {
		for turn := range 2 {
			build := (round + turn) % 2
			fmt.Fprintf(os.Stderr, "round %d of %d, %s\n", round+1, rounds, [2]string{"the build before", "this build"}[build])
			b.product, b.report, b.spent = products[build], report{}, map[string]time.Duration{}
			// A figure may miss its aim in both builds. Rows that were not measured are found later.
			if _ = measure(); b.ctx.Err() != nil {
				return b.ctx.Err()
			}
			for _, l := range b.report.lines {
				note(build, l.backend+": "+l.title, l.unit, l.value)
			}
			for part, spent := range b.spent {
				note(build, part, "s", spent.Seconds())
			}
		}
	}
	return printRatios(os.Stdout, rows)
}

func printRatios(w io.Writer, rows map[string]*figures) error {
	fmt.Fprint(w, "| what | before | after | ratio | lowest and highest ratio of a round |\n|---|--:|--:|--:|---|\n")
	var worse []string
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		f := rows[name]
		if len(f.values[0]) != len(f.values[1]) {
			return fmt.Errorf("%s was not measured in every round", name)
		}
		ratios := make([]float64, len(f.values[0]))
		for i, before := range f.values[0] {
			ratios[i] = f.values[1][i] / before
		}
		low, high := slices.Min(ratios), slices.Max(ratios)
		fmt.Fprintf(w, "| %s | %s %s | %s %s | %.2f | %.2f to %.2f |\n", name, figure(middle(f.values[0])), f.unit,
			figure(middle(f.values[1])), f.unit, middle(ratios), low, high)
		if rate := strings.HasSuffix(f.unit, "/s"); rate && high < 1 || !rate && low > 1 {
			worse = append(worse, name)
		}
	}
	if len(worse) > 0 {
		return errors.New("worse in every round: " + strings.Join(worse, "; "))
	}
	return nil
}

// middle returns the median of values.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
