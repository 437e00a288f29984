package attachdetach

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only the API server's own word says that a create made nothing. After anything else
// the attachment is read before the volume is decided on again.
func TestUnsure(t *testing.T) {
	resource := schema.GroupResource{Resource: "volumeattachments"}
	tests := map[string]struct {
		err  error
		want bool
	}{
		"connection lost":  {errors.New("read tcp: connection reset by peer"), true},
		"no answer yet":    {context.DeadlineExceeded, true},
		"server timeout":   {apierrors.NewServerTimeout(resource, "create", 1), true},
		"gateway timeout":  {apierrors.NewTimeoutError("took too long", 1), true},
		"internal error":   {apierrors.NewInternalError(errors.New("etcd")), true},
		"forbidden":        {apierrors.NewForbidden(resource, "va", nil), false},
		"invalid":          {apierrors.NewInvalid(schema.GroupKind{Kind: "VolumeAttachment"}, "va", nil), false},
		"too many at once": {apierrors.NewTooManyRequests("later", 1), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, k := &Controller{}, key{Driver: "d", Handle: "h"}
			c.unsure(k, "va", tt.err)
			if got := slices.Collect(maps.Keys(c.attempted[k])); tt.want != slices.Equal(got, []string{"va"}) {
				t.Errorf("to be read: %v, want it: %v", got, tt.want)
			}
		})
	}
}
