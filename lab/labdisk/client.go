package labdisk

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"belay.dev/belay/lab/socket"
)

// Client is a client of a fabric. It may be used by many goroutines, and survives a restart of the fabric.
type Client struct {
	addr string
	http *http.Client
}

// Dial makes a client of the fabric that listens on the unix socket addr, and makes sure that it answers.
func Dial(addr string) (*Client, error) {
	c := newClient(addr)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := c.Nodes(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("dial fabric at %s: %w", addr, err)
	}
	return c, nil
}

func newClient(addr string) *Client { return &Client{addr: addr, http: socket.NewClient(addr)} }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Attachments lists which node holds which volume, in the order of their epochs.
func (c *Client) Attachments(ctx context.Context) ([]Attachment, error) {
	var out []Attachment
	return out, c.do(ctx, http.MethodGet, "/v1/attachments", nil, &out)
}

// Volumes lists the volumes of all drivers in the order of their creation.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var out []Volume
	return out, c.do(ctx, http.MethodGet, "/v1/volumes", nil, &out)
}

// Nodes lists the nodes that ever registered.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var out []Node
	return out, c.do(ctx, http.MethodGet, "/v1/nodes", nil, &out)
}

// Calls lists the CSI calls that began at or after since, in the order of their Sequence; the zero time means all. Calls
// in flight are among them, with a zero End.
func (c *Client) Calls(ctx context.Context, since time.Time) ([]Call, error) {
	var out []Call
	return out, c.do(ctx, http.MethodGet, "/v1/calls?since="+sinceQuery(since), nil, &out)
}

// Writes lists who wrote to which volume, and when first and last, in the order of the first write: since the fabric was started, and
// without volumes that were deleted.
func (c *Client) Writes(ctx context.Context) ([]Writes, error) {
	var out []Writes
	return out, c.do(ctx, http.MethodGet, "/v1/writes", nil, &out)
}

// Violations lists the forbidden writes at or after since; the zero time means all. Only the first 10000 are held in
// memory and listed; all are in violations.jsonl in the fabric's folder.
func (c *Client) Violations(ctx context.Context, since time.Time) ([]Violation, error) {
	var out []Violation
	return out, c.do(ctx, http.MethodGet, "/v1/violations?since="+sinceQuery(since), nil, &out)
}

// SetFault adds a fault and returns its id.
func (c *Client) SetFault(ctx context.Context, f Fault) (string, error) {
	if err := f.check(); err != nil {
		return "", err
	}
	var out Fault
	err := c.do(ctx, http.MethodPost, "/v1/faults", f, &out)
	return out.ID, err
}

// Faults lists the faults that are set.
func (c *Client) Faults(ctx context.Context) ([]Fault, error) {
	var out []Fault
	return out, c.do(ctx, http.MethodGet, "/v1/faults", nil, &out)
}

// ClearFaults clears the faults of the ids given, or all; calls that hang in one of them continue. If one of them is not set,
// it returns an error and clears none.
func (c *Client) ClearFaults(ctx context.Context, ids ...string) error {
	q := url.Values{"id": ids}
	return c.do(ctx, http.MethodDelete, "/v1/faults?"+q.Encode(), nil, nil)
}

// Cut refuses all I/O of the node from now on; when it returns no write of the node is in flight. It ends when a new
// incarnation of the node registers, or with Uncut. Attachments stay as they are.
func (c *Client) Cut(ctx context.Context, node string) error {
	return c.do(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(node)+"/cut", nil, nil)
}

// Uncut takes back Cut.
func (c *Client) Uncut(ctx context.Context, node string) error {
	return c.do(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(node)+"/uncut", nil, nil)
}

// RegisterNode makes the node known, so that volumes can be published to it. Node drivers do this themselves; tests of
// the controller side alone need it. An empty Incarnation leaves the one that is known.
func (c *Client) RegisterNode(ctx context.Context, n Node) error {
	return c.do(ctx, http.MethodPost, "/v1/nodes", n, nil)
}

// permissive reports whether the fabric forbids nothing.
func (c *Client) permissive(ctx context.Context) (bool, error) {
	var out fabricMode
	err := c.do(ctx, http.MethodGet, "/v1/mode", nil, &out)
	return out.Permissive, err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	if err := socket.Ask(ctx, c.http, method, path, in, out); err != nil {
		return fmt.Errorf("ask fabric at %s: %w", c.addr, err)
	}
	return nil
}

func sinceQuery(since time.Time) string {
	if since.IsZero() {
		return "0"
	}
	return strconv.FormatInt(since.UnixNano(), 10)
}
