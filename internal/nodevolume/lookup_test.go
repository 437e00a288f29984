package nodevolume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLookupValidity as long as nothing came that may have changed it.
func TestLookupValidity(t *testing.T) {
	found := Attachment{Attached: Yes, UID: "va-1", Metadata: map[string]string{"device": "/dev/x"}}
	node := Node{InUse: Yes, Attached: Yes, Changes: 1}
	read := func(l *Lookup) { l.Read(l.Begin(node), found) }
	tests := map[string]struct {
		happens func(*Lookup)
		want    Attachment
	}{
		"never read":         {func(*Lookup) {}, Attachment{}},
		"read":               {read, found},
		"doubted":            {func(l *Lookup) { read(l); l.Invalidate() }, Attachment{}},
		"read again":         {func(l *Lookup) { read(l); l.Invalidate(); read(l) }, found},
		"the Node changed":   {func(l *Lookup) { read(l); node.Changes++ }, Attachment{}},
		"doubted while read": {func(l *Lookup) { begun := l.Begin(node); l.Invalidate(); l.Read(begun, found) }, Attachment{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var l Lookup
			node.Changes = 1
			tt.happens(&l)
			if diff := cmp.Diff(tt.want, l.Known(node)); diff != "" {
				t.Errorf("known (-want +got):\n%s", diff)
			}
		})
	}
}
