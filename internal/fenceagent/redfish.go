package fenceagent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// maxResource bounds what is read of a resource of Redfish, and maxRedirects how often it may be somewhere else on the BMC.
const maxResource, maxRedirects = 1 << 20, 3

// roots are the certificates that a BMC's is checked with, nil for those of the system, which the agent uses too. Tests set it.
var roots *x509.CertPool

// redfishSystem is a resource of Redfish: the service root, the collection of systems, or one of them (DMTF DSP0266, ComputerSystem.UUID: that of SMBIOS).
type redfishSystem struct {
	UUID    string
	Systems struct {
		ID string `json:"@odata.id"`
	}
	Members []struct {
		ID string `json:"@odata.id"`
	}
}

// redfishUUID reads the system UUID of the machine that fence_redfish switches: that of systems_uri, or of the only system that the BMC has. The
// certificate is checked; with ssl_insecure the agent's answer is all that there is, and a person states whose switch it is.
func (a *Agent) redfishUUID(ctx context.Context) (string, error) {
	if _, insecure := a.options["ssl_insecure"]; insecure {
		return "", ErrNoIdentity
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if to.URL.Scheme != "https" || to.URL.Host != via[0].URL.Host || len(via) > maxRedirects { // /redfish/v1 may lead to /redfish/v1/
			return errors.New("the BMC redirects to another address")
		}
		return nil
	}}
	uri := a.options["systems_uri"]
	if uri == "" { // as the agent: fence_redfish:84-103
		root, err := a.redfishGet(ctx, client, cmp.Or(a.options["redfish_uri"], "/redfish/v1"))
		if err != nil {
			return "", err
		}
		systems, err := a.redfishGet(ctx, client, root.Systems.ID)
		if err != nil {
			return "", err
		}
		if len(systems.Members) != 1 {
			return "", fmt.Errorf("the BMC has %d systems: name one with the option systems_uri", len(systems.Members))
		}
		uri = systems.Members[0].ID
	}
	system, err := a.redfishGet(ctx, client, uri)
	switch {
	case err != nil:
		return "", err
	case system.UUID == "":
		return "", ErrNoIdentity
	}
	return a.identity(system.UUID)
}

// redfishGet reads a resource of the BMC.
func (a *Agent) redfishGet(ctx context.Context, client *http.Client, uri string) (*redfishSystem, error) {
	if !strings.HasPrefix(uri, "/") {
		return nil, fmt.Errorf("the BMC names no resource of its own: %s", a.shown(uri))
	}
	host := net.JoinHostPort(cmp.Or(a.options["ip"], a.options["ipaddr"]), cmp.Or(a.options["ipport"], "443"))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+uri, nil)
	if err != nil {
		return nil, errors.New(a.shown(err.Error()))
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("OData-Version", "4.0")
	user, pass := cmp.Or(a.options["username"], a.options["login"]), cmp.Or(a.options["password"], a.options["passwd"])
	request.SetBasicAuth(user, pass)
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the BMC for its system UUID: %s", a.shown(err.Error()))
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	found := &redfishSystem{}
	switch {
	case response.StatusCode == http.StatusUnauthorized && user != "" && pass != "": // RFC 9110, 15.5.2: "authorization has been refused for those credentials"
		return nil, fmt.Errorf("ask the BMC for its system UUID: %w: %d of %s", ErrRefused, response.StatusCode, a.shown(uri))
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask the BMC for its system UUID: %s of %s", a.shown(response.Status), a.shown(uri))
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxResource)).Decode(found); err != nil {
		return nil, fmt.Errorf("ask the BMC for its system UUID: %s: %s", a.shown(uri), a.shown(err.Error()))
	}
	return found, nil
}
