package timeline

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSVG draws a move that was written as JSON and read back, as docs/demo.svg is.
func TestSVG(t *testing.T) {
	changes, calls := powerTape()
	move := NewMove(Query{Title: "move 3, <power cut>", Volume: volume, From: "node-1", To: "node-2", Start: start}, changes, calls)
	stored, err := json.Marshal(move)
	if err != nil {
		t.Fatal(err)
	}
	read := new(Move)
	if err := json.Unmarshal(stored, read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(move, read); diff != "" {
		t.Errorf("the move after a round trip through JSON (-want +got):\n%s", diff)
	}
	var got bytes.Buffer
	if err := SVG(&got, read, "A note."); err != nil {
		t.Fatal(err)
	}
	golden(t, "power-cut.svg", got.Bytes())
	for decoder := xml.NewDecoder(&got); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not well-formed XML: %v", err)
		}
	}
}
