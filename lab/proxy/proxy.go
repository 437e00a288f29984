package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
)

// Moment is when an interceptor is called.
type Moment string

// The moments of a request.
const (
	Before Moment = "before" // it has not been sent on
	After  Moment = "after"  // the API server has answered, the component does not know yet
)

// Request is one request of the component.
type Request struct {
	// Verb is the API's: get, list, watch, create, update, patch, delete.
	Verb                        string
	Resource, Subresource, Name string
	// Partial is set where only the metadata is asked for.
	Partial bool
	// Body of a write as it was sent.
	Body []byte
	Sent time.Time
	// Answered and Code are zero while there is no answer, or where there never was one.
	Answered time.Time
	Code     int
}

// IsWrite reports whether the request changes an object.
func (r Request) IsWrite() bool { return !slices.Contains([]string{"get", "list", "watch"}, r.Verb) }

// Right is what the request needs: "patch nodes/status".
func (r Request) Right() string {
	if r.Subresource == "" {
		return r.Verb + " " + r.Resource
	}
	return r.Verb + " " + r.Resource + "/" + r.Subresource
}

// Interceptor is called for each request at both moments, from many goroutines; the
// request waits for it. It returns false to cut the connection to the component: before,
// the request is then never sent on; after, its answer is lost.
type Interceptor func(moment Moment, r Request) (goOn bool)

// Proxy is one running proxy. Its methods may be called from any goroutine.
type Proxy struct {
	url    string
	target *url.URL
	server *http.Server

	mu        sync.Mutex
	held      map[string]time.Duration
	writes    []Request
	intercept Interceptor
	date      time.Time
}

// Start begins to serve with the credentials of config.
func Start(ctx context.Context, config *rest.Config) (*Proxy, error) {
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server of the proxy: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the transport of the proxy: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the proxied component: %w", err)
	}
	p := &Proxy{
		url: "http://" + listener.Addr().String(), target: &url.URL{Scheme: target.Scheme, Host: target.Host},
		held: map[string]time.Duration{},
	}
	p.server = &http.Server{
		Handler: p.handler(transport), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // connections break on purpose
	}
	go func() { _ = p.server.Serve(listener) }() // ends with Close
	context.AfterFunc(ctx, func() { _ = p.server.Close() })
	return p, nil
}

// URL is where the component finds the proxy.
func (p *Proxy) URL() string { return p.url }

// HoldBack delays what watches of a resource ("pods") receive from now on, and the
// lists that begin them; zero ends that. Answers to writes, reads of one object and lists of mere
// metadata pass at once: a cache lags, the store does not.
func (p *Proxy) HoldBack(resource string, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[resource] = by
}

// heldBack is read for each chunk, so that a change of HoldBack acts on watches that run.
func (p *Proxy) heldBack(resource string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[resource]
}

// Intercept sets the interceptor; nil for none.
func (p *Proxy) Intercept(f Interceptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = f
}

// StopClock makes the API server's clock stand at a time, as the component sees it in the Date header of each answer.
func (p *Proxy) StopClock(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.date = at
}

// setDate sets the date of an answer if the clock was stopped.
func (p *Proxy) setDate(answer http.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.date.IsZero() {
		answer.Set("Date", p.date.UTC().Format(http.TimeFormat))
	}
}

// Writes are all writes so far, those without an answer too, in the order in which
// they ended.
func (p *Proxy) Writes() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.writes)
}

func (p *Proxy) stop(moment Moment, r Request) (goOn bool) {
	p.mu.Lock()
	intercept := p.intercept
	p.mu.Unlock()
	return intercept == nil || intercept(moment, r)
}

func (p *Proxy) handler(transport http.RoundTripper) http.Handler {
	reverse := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(p.target) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			p.setDate(response.Header)
			if r, ok := response.Request.Context().Value(requestKey{}).(*Request); ok {
				r.Answered, r.Code = time.Now(), response.StatusCode
				if !p.stop(After, *r) {
					return errCut
				}
				p.lag(response, *r)
			}
			return nil
		},
		// A server that is gone resets connections; it does not answer 502.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		r, err := read(h)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if r.IsWrite() {
			defer func() { p.wrote(*r) }()
		}
		if !p.stop(Before, *r) {
			panic(http.ErrAbortHandler)
		}
		r.Sent = time.Now()
		reverse.ServeHTTP(w, h.WithContext(context.WithValue(h.Context(), requestKey{}, r)))
	})
}

type requestKey struct{}

var errCut = errors.New("the interceptor cut the connection")

func (p *Proxy) wrote(r Request) {
	if r.Sent.IsZero() {
		return // it was never sent on
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, r)
}

// lag makes the answer come late where its resource is held back.
func (p *Proxy) lag(response *http.Response, r Request) {
	if r.Verb == "watch" || r.Verb == "list" && !r.Partial {
		response.Body = delay(response.Body, func() time.Duration { return p.heldBack(r.Resource) })
	}
}

// paths reads requests as the API server does.
var paths = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// read says what a request is about.
func read(h *http.Request) (*Request, error) {
	info, err := paths.NewRequestInfo(h)
	if err != nil {
		return nil, fmt.Errorf("read the request for %s: %w", h.URL.Path, err)
	}
	r := &Request{
		Verb: info.Verb, Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		Partial: strings.Contains(h.Header.Get("Accept"), "as=PartialObjectMetadata"),
	}
	if !r.IsWrite() || h.Body == nil {
		return r, nil
	}
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return nil, fmt.Errorf("read the body of %s: %w", r.Right(), err)
	}
	r.Body, h.Body = body, io.NopCloser(bytes.NewReader(body))
	return r, nil
}
