package labdisk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// begunCall is the answer to the beginning of a node's call.
type begunCall struct {
	Call  Call   `json:"call"`
	Fault *Fault `json:"fault,omitempty"`
}

// fabricMode is how strict a fabric is.
type fabricMode struct {
	Permissive bool `json:"permissive"`
}

// control is the fabric's HTTP interface. Try it: curl --unix-socket fabric.sock http://fabric/v1/attachments
func (f *fabric) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/attachments", func(w http.ResponseWriter, _ *http.Request) { answer(w, f.attachments(), nil) })
	mux.HandleFunc("GET /v1/volumes", func(w http.ResponseWriter, _ *http.Request) { answer(w, list(f.snapshot().Volumes), nil) })
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, _ *http.Request) { answer(w, list(f.snapshot().Nodes), nil) })
	mux.HandleFunc("GET /v1/writes", func(w http.ResponseWriter, _ *http.Request) { answer(w, f.writes(), nil) })
	mux.HandleFunc("GET /v1/calls", func(w http.ResponseWriter, r *http.Request) {
		since, err := sinceOf(r)
		answer(w, f.record.callsSince(since), err)
	})
	mux.HandleFunc("GET /v1/violations", func(w http.ResponseWriter, r *http.Request) {
		since, err := sinceOf(r)
		answer(w, f.record.violationsSince(since), err)
	})
	mux.HandleFunc("POST /v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		n, err := bodyOf[Node](r)
		if err == nil {
			err = f.register(n)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("POST /v1/nodes/{node}/cut", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, f.cut(r.PathValue("node"), true))
	})
	mux.HandleFunc("POST /v1/nodes/{node}/uncut", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, f.cut(r.PathValue("node"), false))
	})
	mux.HandleFunc("GET /v1/mode", func(w http.ResponseWriter, _ *http.Request) { answer(w, fabricMode{f.opts.Permissive}, nil) })
	f.controlFaults(mux)
	f.controlCalls(mux)
	mux.HandleFunc("POST /v1/io", f.upgradeIO)
	return mux
}

func (f *fabric) controlFaults(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/faults", func(w http.ResponseWriter, _ *http.Request) { answer(w, list(f.snapshot().Faults), nil) })
	mux.HandleFunc("POST /v1/faults", func(w http.ResponseWriter, r *http.Request) {
		fault, err := bodyOf[Fault](r)
		if err == nil {
			fault, err = f.setFault(fault)
		}
		answer(w, fault, err)
	})
	mux.HandleFunc("DELETE /v1/faults", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, f.clearFaults(r.URL.Query()["id"]))
	})
	mux.HandleFunc("GET /v1/faults/{id}/cleared", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, f.waitCleared(r.Context(), r.PathValue("id")))
	})
}

func (f *fabric) controlCalls(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/calls/begin", func(w http.ResponseWriter, r *http.Request) {
		c, err := bodyOf[Call](r)
		var fault *Fault
		if err == nil {
			c, fault, err = f.begin(r.Context(), c)
		}
		answer(w, begunCall{Call: c, Fault: fault}, err)
	})
	mux.HandleFunc("POST /v1/calls/end", func(w http.ResponseWriter, r *http.Request) {
		c, err := bodyOf[Call](r)
		if err == nil {
			f.end(c)
		}
		answer(w, nil, err)
	})
}

// upgradeIO turns the request of a host adapter into its I/O connection.
func (f *fabric) upgradeIO(w http.ResponseWriter, r *http.Request) {
	name, incarnation := r.URL.Query().Get("node"), r.URL.Query().Get("incarnation")
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n == nil || r.Header.Get("Upgrade") != ioProtocol {
		http.Error(w, fmt.Sprintf("node %q is not registered, or protocol %q is not %s", name, r.Header.Get("Upgrade"), ioProtocol),
			http.StatusBadRequest)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", ioProtocol)
	if err != nil {
		_ = conn.Close()
		return
	}
	f.serveIO(conn, rw.Reader, n, incarnation)
}

func (f *fabric) attachments() []Attachment {
	out := []Attachment{}
	for _, v := range f.snapshot().Volumes {
		out = append(out, v.Attachments...)
	}
	slices.SortFunc(out, func(a, b Attachment) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return out
}

// list makes an empty list of none, for JSON.
func list[T any](in []T) []T { return append([]T{}, in...) }

func bodyOf[T any](r *http.Request) (T, error) {
	var value T
	if err := json.NewDecoder(r.Body).Decode(&value); err != nil {
		return value, fmt.Errorf("decode body: %w", err)
	}
	return value, nil
}

func sinceOf(r *http.Request) (time.Time, error) {
	ns, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read parameter since, nanoseconds since 1970: %w", err)
	}
	if ns == 0 {
		return time.Time{}, nil
	}
	return time.Unix(0, ns), nil
}

func answer(w http.ResponseWriter, value any, err error) {
	switch {
	case errors.Is(err, errNodeNotFound), errors.Is(err, errVolumeNotFound), errors.Is(err, errFaultNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errDiskFull):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case value == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value)
	}
}
