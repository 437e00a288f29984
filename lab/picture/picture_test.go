package picture

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestMarks: the marks of an axis are round, wherever it ends.
func TestMarks(t *testing.T) {
	for name, c := range map[string]struct {
		axis []Mark
		want string
	}{
		"milliseconds":           {Times(2670900*time.Microsecond, 6), "0 ms, 500 ms, 1,000 ms, 1,500 ms, 2,000 ms, 2,500 ms"},
		"few milliseconds":       {Times(3*time.Millisecond, 6), "0 ms, 0.5 ms, 1 ms, 1.5 ms, 2 ms, 2.5 ms, 3 ms"},
		"below ten seconds":      {Times(9999*time.Millisecond, 5), "0 ms, 2,000 ms, 4,000 ms, 6,000 ms, 8,000 ms"},
		"seconds":                {Times(10*time.Second, 5), "0 s, 2 s, 4 s, 6 s, 8 s, 10 s"},
		"a dead node":            {Times(73600*time.Millisecond, 8), "0 s, 10 s, 20 s, 30 s, 40 s, 50 s, 60 s, 70 s"},
		"no time":                {Times(0, 5), "0 ms"},
		"to the greatest value":  {marks(4416.9, 6, false), "0, 1,000, 2,000, 3,000, 4,000"},
		"beyond":                 {marks(4416.9, 6, true), "0, 1,000, 2,000, 3,000, 4,000, 5,000"},
		"the greatest is a mark": {marks(5000, 5, true), "0, 1,000, 2,000, 3,000, 4,000, 5,000"},
		"small":                  {marks(0.3, 3, false), "0, 0.1, 0.2, 0.3"},
	} {
		var labels []string
		for _, mark := range c.axis {
			labels = append(labels, mark.Label)
		}
		if got := strings.Join(labels, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 0.2621: "0.262", 1.5: "1.5", 25.629: "25.6", 43.04: "43.0", 999: "999", 4369.633: "4,370", 100000: "100,000", -1234567: "-1,234,567", 110: "110",
	} {
		if got := Number(value); got != want {
			t.Errorf("%v is written %q, want %q", value, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{372*time.Millisecond + 640*time.Microsecond: "372.6 ms", 9 * time.Second: "9000.0 ms", 31049 * time.Millisecond: "31.0 s"} {
		if got := Duration(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}

// TestUnreadable: a picture in which a text is cut off, or covers another, is not written.
func TestUnreadable(t *testing.T) {
	long := strings.Repeat("0123456789", 13)
	for name, c := range map[string]struct {
		card *Card
		want string
	}{
		"fits":         {text(New("title", ""), 16, 60, Start, "text"), ""},
		"too long":     {text(New("title", ""), 16, 60, Start, long), "is cut off"},
		"left of it":   {text(New("title", ""), 16, 60, End, "100000"), "is cut off"},
		"below it":     {text(New("title", ""), 16, 120, Start, "text"), "is cut off"},
		"over another": {text(text(New("title", ""), 16, 60, Start, "some text"), 40, 65, Start, "text"), "covers"},
		"title":        {New(long, ""), "is cut off"},
	} {
		err := c.card.Write(io.Discard, 120)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func text(c *Card, x, y float64, anchor Anchor, text string) *Card {
	c.Text(x, y, anchor, Ink, text)
	return c
}

// TestWrap: the text below the title is broken into lines that fit.
func TestWrap(t *testing.T) {
	card := New("title", strings.Repeat("several words ", 30))
	if err := card.Write(io.Discard, card.Top); err != nil || strings.Count(card.body.String(), "<text") < 4 {
		t.Errorf("error %v, in\n%s", err, card.body.String())
	}
}

// TestPlot: lines that end close together have their names apart, beside the plot and in the card.
func TestPlot(t *testing.T) {
	sizes := []float64{200, 20000, 100000}
	plot := Plot{Title: "peak memory, MiB", X: "attached volumes", Marks: sizes, Lines: []Series{
		{Name: "controller, <upstream>", Color: Orange, X: sizes, Y: []float64{111, 1000, 4370}},
		{Name: "attacher, upstream", Color: Orange, Dashed: true, X: sizes, Y: []float64{66, 304, 0}},
		{Name: "attacher, belay", Color: Green, Dashed: true, X: sizes, Y: []float64{66, 127, 1}},
		{Name: "attacher, belay, GOGC=100", Color: Purple, Dashed: true, X: sizes[:2], Y: []float64{66, 2}},
	}}
	var out strings.Builder
	if err := plot.Draw(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">100,000<", ">5,000<", "controller, &lt;upstream&gt;: 4,370"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	for decoder := xml.NewDecoder(strings.NewReader(out.String())); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not well-formed XML: %v", err)
		}
	}
}
