package table

import "strings"

// Spreadsheets take a cell for a formula that begins with one of these bytes.
const formulaBytes = "=+-@\t\r"

// endsCell reports whether a spreadsheet may end a cell at c, although the file has other separators.
func endsCell(c byte) bool { return strings.IndexByte(";\t\r\n|", c) >= 0 }

// mayPrecede reports whether a spreadsheet ignores c at the beginning of a cell.
func mayPrecede(c byte) bool { return c == ' ' || c == '"' || c == '\'' }

// Harmless returns a cell with an apostrophe in front of each formula: at its beginning, and behind every separator
// that a spreadsheet may use. Files that people open have such cells.
func Harmless(cell string) string {
	var b strings.Builder
	begins := true
	for i := range len(cell) {
		c := cell[i]
		if begins && strings.IndexByte(formulaBytes, c) >= 0 {
			b.WriteByte('\'')
		}
		b.WriteByte(c)
		begins = endsCell(c) || begins && mayPrecede(c)
	}
	return b.String()
}

// Original returns the cell that Harmless was given. A cell without an apostrophe in front of a formula is returned as
// it is.
func Original(cell string) string {
	var b strings.Builder
	begins := true
	for i := range len(cell) {
		c := cell[i]
		added := c == '\'' && i+1 < len(cell) && strings.IndexByte(formulaBytes, cell[i+1]) >= 0
		if !begins || !added {
			b.WriteByte(c)
		}
		begins = endsCell(c) || begins && mayPrecede(c)
	}
	return b.String()
}

// HarmlessRow makes all cells of a row harmless, and returns it.
func HarmlessRow(row []string) []string {
	for i := range row {
		row[i] = Harmless(row[i])
	}
	return row
}
