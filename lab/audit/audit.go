package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Bounds of the log that the API server keeps, for --audit-log-maxsize (megabytes of one file)
// and --audit-log-maxbackup (older files beside it).
const (
	MaxSizeMB  = 256
	MaxBackups = 3
)

// Policy is the audit policy of the lab: every request once, without bodies.
func Policy() []byte {
	return []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}` + "\n")
}

// Request is one request that the API server has answered.
type Request struct {
	// At is when it was received, by the API server's clock, with microseconds.
	At time.Time
	// User is who asked: "system:serviceaccount:<namespace>:<name>", "system:node:<name>" and so on.
	User string
	// UserAgent is what the program called itself.
	UserAgent string
	// Verb is the API's verb in lower case: get, list, watch, create, update, patch, delete.
	Verb string
	// Group, Resource and Subresource say of what; all are empty for paths that are no resources.
	Group, Resource, Subresource string
	// Namespace and Name of the object, where the request names one.
	Namespace, Name string
	// Path is the request's path without its query.
	Path string
	// Code of the answer; 0 if there was none.
	Code int
}

// Right is what RBAC must grant for the request: "patch nodes/status".
func (r Request) Right() string {
	right := r.Verb + " " + r.Resource
	if r.Subresource != "" {
		right += "/" + r.Subresource
	}
	return right
}

// Read gives the requests that were received at or after from and before to (a zero to: until
// now), oldest first, out of the log at path and the parts of it that were rotated away. A log
// that is not there yet holds none. A last line that is still being written is left out.
func Read(path string, from, to time.Time) ([]Request, error) {
	files, err := parts(path)
	if err != nil {
		return nil, err
	}
	var all []Request
	for _, file := range files {
		found, err := readFile(file, from, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the audit log %s: %w", file, err)
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return a.At.Compare(b.At) })
	return all, nil
}

// parts are the files of one log. The API server renames audit.log to audit-<time>.log.
func parts(path string) ([]string, error) {
	suffix := filepath.Ext(path)
	older, err := filepath.Glob(strings.TrimSuffix(path, suffix) + "-*" + suffix)
	if err != nil {
		return nil, fmt.Errorf("listing the parts of the audit log %s: %w", path, err)
	}
	slices.Sort(older)
	return append(older, path), nil
}

func readFile(path string, from, to time.Time) ([]Request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var found []Request
	lines := bufio.NewReaderSize(file, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return found, nil // what follows the last newline is not whole yet
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%q is no audit event: %w", strings.TrimSpace(string(line)), err)
		}
		// A watch is written down when it begins and again when it ends, any other request once.
		if began := e.Stage == auditv1.StageResponseStarted; began != (e.Verb == "watch") {
			continue
		}
		if at := e.RequestReceivedTimestamp.Time; at.Before(from) || !to.IsZero() && !at.Before(to) {
			continue
		}
		found = append(found, request(e))
	}
}

func request(e auditv1.Event) Request {
	r := Request{At: e.RequestReceivedTimestamp.UTC(), User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb}
	r.Path, _, _ = strings.Cut(e.RequestURI, "?")
	if o := e.ObjectRef; o != nil {
		r.Group, r.Resource, r.Subresource, r.Namespace, r.Name = o.APIGroup, o.Resource, o.Subresource, o.Namespace, o.Name
	}
	if e.ResponseStatus != nil {
		r.Code = int(e.ResponseStatus.Code)
	}
	return r
}

// Of leaves the requests of one user.
func Of(requests []Request, user string) []Request {
	return slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return r.User != user })
}

// Rights counts requests by the right that they need. Requests for what is no resource (discovery,
// health) are left out.
func Rights(requests []Request) map[string]int {
	counts := map[string]int{}
	for _, r := range requests {
		if r.Resource != "" {
			counts[r.Right()]++
		}
	}
	return counts
}

// Refused lists, sorted and each once, the rights that requests lacked (answer 403).
func Refused(requests []Request) []string {
	var refused []string
	for _, r := range requests {
		if r.Code == 403 {
			refused = append(refused, r.User+": "+r.Right())
		}
	}
	slices.Sort(refused)
	return slices.Compact(refused)
}
