package fenceagent

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestRedfishIdentity: the system UUID of the machine that the agent switches is read from its BMC, whose certificate is checked. Nothing is sent to
// another host, and nothing to one without a certificate that counts.
func TestRedfishIdentity(t *testing.T) {
	const uuid = "4c4c4544-0042-3510-8052-b4c04f4d3332"
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked elsewhere: %v", r.Header) }))
	t.Cleanup(elsewhere.Close)
	root, one := `{"Systems":{"@odata.id":"/redfish/v1/Systems"}}`, `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"}]}`
	system := `{"UUID":"` + uuid + `"}`
	for name, c := range map[string]struct {
		resources map[string]string
		options   map[string]string
		untrusted bool
		want      string
		says      string // of the error; - for ErrNoIdentity
	}{
		"the system that is named":         {map[string]string{"/redfish/v1/Systems/1": system}, map[string]string{"systems_uri": "/redfish/v1/Systems/1"}, false, uuid, ""},
		"the only one":                     {map[string]string{"/redfish/v1/": root, "/redfish/v1/Systems": one, "/redfish/v1/Systems/1": system}, nil, false, uuid, ""},
		"one of two":                       {map[string]string{"/redfish/v1/": root, "/redfish/v1/Systems": `{"Members":[{},{}]}`}, nil, false, "", "2 systems"},
		"none":                             {map[string]string{"/redfish/v1/": root, "/redfish/v1/Systems": `{}`}, nil, false, "", "0 systems"},
		"no UUID":                          {map[string]string{"/redfish/v1/Systems/1": `{"UUID":null}`}, map[string]string{"systems_uri": "/redfish/v1/Systems/1"}, false, "", "-"},
		"no word":                          {map[string]string{"/s": `{"UUID":"a b"}`}, map[string]string{"systems_uri": "/s"}, false, "", "not one word"},
		"its certificate does not count":   {map[string]string{"/s": system}, map[string]string{"systems_uri": "/s"}, true, "", "certificate"},
		"its certificate is not checked":   {map[string]string{"/s": system}, map[string]string{"systems_uri": "/s", "ssl_insecure": "1"}, true, "", "-"},
		"it has no such resource":          {nil, map[string]string{"systems_uri": "/missing"}, false, "", "404"},
		"it leads to another host":         {map[string]string{"/s": "to " + elsewhere.URL}, map[string]string{"systems_uri": "/s"}, false, "", "redirects"},
		"it names another host":            {map[string]string{"/redfish/v1/": `{"Systems":{"@odata.id":"@198.51.100.1/"}}`}, nil, false, "", "no resource of its own"},
		"it never ends":                    {map[string]string{"/s": `{"UUID":"` + strings.Repeat("x", maxResource) + `"}`}, map[string]string{"systems_uri": "/s"}, false, "", "unexpected EOF"},
		"it says the password in an error": {map[string]string{"/s": `Tr0ub4dor`}, map[string]string{"systems_uri": "/s"}, false, "", "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				content, found := c.resources[r.URL.Path]
				user, pass, _ := r.BasicAuth()
				to, leads := strings.CutPrefix(content, "to ")
				switch {
				case user != "admin" || pass != password:
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path == "/redfish/v1":
					http.Redirect(w, r, "/redfish/v1/", http.StatusPermanentRedirect)
				case leads:
					http.Redirect(w, r, to, http.StatusFound)
				case !found:
					w.WriteHeader(http.StatusNotFound)
				default:
					_, _ = fmt.Fprint(w, content)
				}
			}))
			s.Config.ErrorLog = nil
			t.Cleanup(s.Close)
			pool := x509.NewCertPool()
			if !c.untrusted {
				pool.AddCert(s.Certificate())
			}
			before := roots
			roots = pool
			t.Cleanup(func() { roots = before })
			host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
			a := &Agent{path: filepath.Join(t.TempDir(), "fence_redfish"), options: map[string]string{"ip": host, "ipport": port, "username": "admin", "password": password}, secrets: []string{password}}
			maps.Copy(a.options, c.options)
			id, err := a.Identity(t.Context())
			switch {
			case id != c.want || (err == nil) != (c.want != ""):
				t.Errorf("%q (%v)", id, err)
			case c.says == "-" && !errors.Is(err, ErrNoIdentity):
				t.Errorf("%v, want %v", err, ErrNoIdentity)
			case c.says != "-" && err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), password)):
				t.Errorf("%v, want %s", err, c.says)
			}
			if c.untrusted && asked > 0 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// redfishOf is an agent for what answers at a BMC, whose certificate counts.
func redfishOf(t *testing.T, answers http.HandlerFunc) *Agent {
	t.Helper()
	s := httptest.NewTLSServer(answers)
	t.Cleanup(s.Close)
	before := roots
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	t.Cleanup(func() { roots = before })
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	options := map[string]string{"ip": host, "ipport": port, "systems_uri": "/s", "username": "admin", "password": password}
	return &Agent{path: filepath.Join(t.TempDir(), "fence_redfish"), options: options, secrets: []string{password}}
}

// TestRedfishRefusedLogin (hole 19): a 401 to a request that had user and password is a refusal: a BMC that is asked on locks the account. What else it answers is
// none, and neither is a 401 to a request that had no password, which only asks for one.
func TestRedfishRefusedLogin(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		without string
		want    bool
	}{
		"401":                     {http.StatusUnauthorized, "", true},
		"401, and no password":    {http.StatusUnauthorized, "password", false},
		"401, and no user":        {http.StatusUnauthorized, "username", false},
		"403, no right":           {http.StatusForbidden, "", false},
		"503, busy":               {http.StatusServiceUnavailable, "", false},
		"407, of another machine": {http.StatusProxyAuthRequired, "", false},
	} {
		a := redfishOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) })
		delete(a.options, c.without)
		if _, err := a.Identity(t.Context()); err == nil || errors.Is(err, ErrRefused) != c.want {
			t.Errorf("%s: %v; want refused: %t", name, err, c.want)
		}
	}
}

// TestRedfishStatusLineIsRedacted (hole 19): what answers at the address chooses the text of the status, too. That text goes into the status of the FenceSource, into
// the NodeFence and into the log: nothing that a switch says is kept before the values of the Secret were taken out.
func TestRedfishStatusLineIsRedacted(t *testing.T) {
	a := redfishOf(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("HTTP/1.1 403 not with " + password + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	})
	if _, err := a.Identity(t.Context()); err == nil || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), "403 not with (secret)") {
		t.Errorf("%v: want the status without the password", err)
	}
}
