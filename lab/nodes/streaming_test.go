package nodes

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// kubectl shows the body of the answer, so that is where the reason must be.
func TestStreamingIsRefusedWithAReason(t *testing.T) {
	answer := httptest.NewRecorder()
	refuseStreaming(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/exec/default/p/c", nil))
	if answer.Code != http.StatusNotImplemented || !strings.Contains(answer.Body.String(), "--nodes kubelet") {
		t.Errorf("got %d %q", answer.Code, answer.Body)
	}
}
