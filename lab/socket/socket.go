// Package socket is HTTP over unix sockets: how the fabric, node-init and the supervisor of a lab are asked.
package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// MaxPath is the room for a path in the address of a unix socket in bytes, without the final zero.
const MaxPath = 107

// Listen listens on a unix socket, in place of one that a killed process left.
func Listen(path string) (net.Listener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("listen on %s: the path of a unix socket may have %d bytes, this one has %d: put the cache folder (BELAY_CACHE) at a shorter path",
			path, MaxPath, len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make folder of socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket: %w", err)
	}
	return listener, nil
}

// NewClient returns a client that connects to the socket whatever the host of a request is.
func NewClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

// Ask sends a request with in as JSON, unless it is nil, and decodes the reply into out, unless that is nil. The text of a reply
// that is no success is the error.
func Ask(ctx context.Context, client *http.Client, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request %s: %w", path, err)
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://socket"+path, body)
	if err != nil {
		return fmt.Errorf("make request %s: %w", path, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	reply, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("read reply to %s: %w", path, err)
	case response.StatusCode/100 != 2:
		return errors.New(strings.TrimSpace(string(reply)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(reply, out); err != nil {
		return fmt.Errorf("decode reply to %s: %w", path, err)
	}
	return nil
}
