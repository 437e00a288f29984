package fenceagent

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
)

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

// The password of a BMC was changed, and the Secret was not. belay itself asks for the system UUID before each state, and the BMC answers 401 Unauthorized: RFC
// 9110 15.5.2 leaves no doubt that the login was refused. It counts as a switch that does not answer: a fence asks again each second, and a look at a silent node
// each 32 s, and the BMC locks the account (hole 19). Then the corrected Secret does not help either, and the fence does not end.
// What must hold: a 401 of a resource that is asked for with user and password is a refusal, as that of ipmitool.
func TestHostileUnauthorizedIsARefusedLogin(t *testing.T) {
	a := redfishOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	if _, err := a.Identity(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("%v is no %v", err, ErrRefused)
	}
}
