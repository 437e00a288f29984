package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	older = `{"kind":"Event","stage":"ResponseComplete","requestURI":"/api/v1/nodes/n1/status?timeout=5s","verb":"patch","user":{"username":"a"},"userAgent":"x","objectRef":{"resource":"nodes","name":"n1","apiVersion":"v1","subresource":"status"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:01.000000Z"}
`
	newer = `{"kind":"Event","stage":"ResponseStarted","requestURI":"/api/v1/pods?watch=true","verb":"watch","user":{"username":"a"},"objectRef":{"resource":"pods","apiVersion":"v1"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:02.000000Z"}
{"kind":"Event","stage":"ResponseComplete","requestURI":"/api/v1/pods?watch=true","verb":"watch","user":{"username":"a"},"objectRef":{"resource":"pods","apiVersion":"v1"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:02.000000Z"}
{"kind":"Event","stage":"ResponseComplete","requestURI":"/readyz","verb":"get","user":{"username":"b"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:03.000000Z"}
{"kind":"Event","stage":"ResponseComplete","requestURI":"/apis/storage.k8s.io/v1/volumeattachments/v","verb":"delete","user":{"username":"b"},"objectRef":{"resource":"volumeattachments","name":"v","apiGroup":"storage.k8s.io","apiVersion":"v1"},"responseStatus":{"code":403},"requestReceivedTimestamp":"2026-01-01T00:00:04.000000Z"}
{"kind":"Event","stage":"ResponseComplete","requestURI":"/api`
)

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "audit.log")
}

func second(n int) time.Time { return time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC) }

func TestRead(t *testing.T) {
	path := write(t, map[string]string{"audit-2026-01-01T00-00-01.500.log": older, "audit.log": newer})
	all, err := Read(path, time.Time{}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{At: second(1), User: "a", UserAgent: "x", Verb: "patch", Resource: "nodes", Subresource: "status", Name: "n1", Path: "/api/v1/nodes/n1/status", Code: 200},
		{At: second(2), User: "a", Verb: "watch", Resource: "pods", Path: "/api/v1/pods", Code: 200},
		{At: second(3), User: "b", Verb: "get", Path: "/readyz", Code: 200},
		{At: second(4), User: "b", Verb: "delete", Group: "storage.k8s.io", Resource: "volumeattachments", Name: "v", Path: "/apis/storage.k8s.io/v1/volumeattachments/v", Code: 403},
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"patch nodes/status": 1, "watch pods": 1, "delete volumeattachments": 1}, Rights(all)); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b: delete volumeattachments"}, Refused(all)); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if got := Of(all, "b"); len(got) != 2 || len(all) != 4 {
		t.Errorf("b sent %v", got)
	}
}

func TestReadInterval(t *testing.T) {
	path := write(t, map[string]string{"audit-2026-01-01T00-00-01.500.log": older, "audit.log": newer})
	found, err := Read(path, second(2), second(4))
	if err != nil || len(found) != 2 || found[0].Verb != "watch" || found[1].Path != "/readyz" {
		t.Errorf("between second 2 and 4: %v, %v", found, err)
	}
}

func TestReadTrouble(t *testing.T) {
	if found, err := Read(filepath.Join(t.TempDir(), "audit.log"), time.Time{}, time.Time{}); err != nil || len(found) != 0 {
		t.Errorf("a log that is not there: %v, %v", found, err)
	}
	_, err := Read(write(t, map[string]string{"audit.log": "no event\n"}), time.Time{}, time.Time{})
	if err == nil || !strings.Contains(err.Error(), `"no event" is no audit event`) {
		t.Errorf("a line that is no event gave %v", err)
	}
}
