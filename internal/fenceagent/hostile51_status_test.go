package fenceagent

import (
	"net/http"
	"strings"
	"testing"
)

// What answers at the address chooses the text of the status, too, and repeats the password in it. All else that it says is redacted. The text goes into the status of
// the FenceSource, into the NodeFence and into the log.
// What must hold: nothing that a switch says is kept before the values of the Secret were taken out.
func TestHostileStatusLineShowsNoPassword(t *testing.T) {
	a := redfishOf(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close() //nolint:errcheck // of a test
		_, _ = c.Write([]byte("HTTP/1.1 403 not with " + password + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	})
	if _, err := a.Identity(t.Context()); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("the error has the password: %v", err)
	}
}
