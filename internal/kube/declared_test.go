package kube

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A declaration counts for one attachment and one node ID, for a day. What is edited, malformed, too old or of the future counts for nothing.
func TestDeclaredGone(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	good := Declaration{UID: "u", ResourceVersion: "7", NodeID: "i-1", By: "ada", Reason: "terminated", At: now}
	tests := map[string]struct {
		change func(d *Declaration)
		text   func(text string) string
		want   string // of the error; empty if it counts
	}{
		"it counts":           {},
		"a day old":           {change: func(d *Declaration) { d.At = now.Add(-declarationAtMost) }},
		"a clock ahead":       {change: func(d *Declaration) { d.At = now.Add(declarationAhead) }},
		"too old":             {change: func(d *Declaration) { d.At = now.Add(-declarationAtMost - time.Second) }, want: "old"},
		"without a time":      {change: func(d *Declaration) { d.At = time.Time{} }, want: "old"},
		"of the future":       {change: func(d *Declaration) { d.At = now.Add(declarationAhead + time.Second) }, want: "future"},
		"of another object":   {change: func(d *Declaration) { d.UID = "v" }, want: "another VolumeAttachment"},
		"of no object":        {change: func(d *Declaration) { d.UID = "" }, want: "another VolumeAttachment"},
		"of another node ID":  {change: func(d *Declaration) { d.NodeID = "i-2" }, want: "i-2"},
		"of no node ID":       {change: func(d *Declaration) { d.NodeID = "" }, want: "is recorded"},
		"by unknown":          {change: func(d *Declaration) { d.By = "" }, want: "lacks"},
		"without a reason":    {change: func(d *Declaration) { d.Reason = "" }, want: "lacks"},
		"without its version": {change: func(d *Declaration) { d.ResourceVersion = "" }, want: "lacks"},
		"true":                {text: func(string) string { return "true" }, want: "malformed"},
		"empty":               {text: func(string) string { return "" }, want: "malformed"},
		"more than one":       {text: func(text string) string { return text + text }, want: "malformed"},
		"an unknown field":    {text: func(text string) string { return strings.Replace(text, "{", `{"x":1,`, 1) }, want: "malformed"},
		"no time":             {text: func(text string) string { return strings.Replace(text, "2026", "soon", 1) }, want: "malformed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := good
			if tt.change != nil {
				tt.change(&d)
			}
			body, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			text := string(body)
			if tt.text != nil {
				text = tt.text(text)
			}
			va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{NodeIDAnnotation: "i-1", DeclaredGoneAnnotation: text}}}
			got, err := DeclaredGone(va, now)
			switch {
			case tt.want == "" && (err != nil || got == nil || *got != d):
				t.Errorf("%+v, %v", got, err)
			case tt.want != "" && (err == nil || got != nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%+v, %v, want an error with %q", got, err, tt.want)
			}
		})
	}
	if d, err := DeclaredGone(&storagev1.VolumeAttachment{}, now); d != nil || err != nil {
		t.Errorf("without an annotation: %+v, %v", d, err)
	}
}

func TestAnnotationManagers(t *testing.T) {
	owns := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const declared = `{"f:metadata":{"f:annotations":{"f:belay.dev/declared-gone":{}}}}`
	for name, tt := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   bool
	}{
		"the command":             {[]metav1.ManagedFieldsEntry{owns("csi-attacher", `{"f:status":{}}`), owns(DeclarationManager, declared)}, true},
		"a person":                {[]metav1.ManagedFieldsEntry{owns("kubectl-edit", declared)}, false},
		"a restore":               {[]metav1.ManagedFieldsEntry{owns("velero-server", declared)}, false},
		"both":                    {[]metav1.ManagedFieldsEntry{owns("kubectl-edit", declared), owns(DeclarationManager, declared)}, false},
		"the command, another":    {[]metav1.ManagedFieldsEntry{owns(DeclarationManager, `{"f:metadata":{"f:annotations":{"f:belay.dev/declared-gone-2":{}}}}`)}, false},
		"not known":               {nil, false},
		"an entry without fields": {[]metav1.ManagedFieldsEntry{{Manager: DeclarationManager}}, false},
	} {
		if got := IsDeclaration(metav1.ObjectMeta{ManagedFields: tt.fields}); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
