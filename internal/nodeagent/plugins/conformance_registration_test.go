package plugins

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// TestPluginRegistration: plugins appear one after the other, and disappear; each is registered and unregistered.
func TestPluginRegistration(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	w.plugins()
	const count = 10
	var drivers []*csidriver.Driver
	for i := range count {
		d := w.startDriver(fmt.Sprintf("d%d.test.belay.dev", i))
		d.WantRegistered("")
		drivers = append(drivers, d)
	}
	if got := w.knows(); len(got.Drivers) != count || len(got.IDs) != count {
		t.Errorf("known are %+v", got)
	}
	for _, d := range drivers {
		d.Stop()
	}
	w.untilNode("all are forgotten", func(n *corev1.Node) bool {
		return n.Annotations["csi.volume.kubernetes.io/nodeid"] == ""
	})
	wait.Until(w, "the CSINode has no driver", func() bool { return len(w.knows().Drivers) == 0 })
}

// TestPluginRegistrationAtKubeletStart: sockets of several drivers exist before the agent starts, in folders below the
// registry too. Hidden files, and files that are no sockets, are left alone.
func TestPluginRegistrationAtKubeletStart(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	deep := w.registrar("a/b/deep-reg.sock", w.behind("1.0.0"))
	hidden := w.registrar(".hidden.sock", w.behind("1.0.0"))
	below := w.registrar(".kubernetes/below.sock", w.behind("1.0.0"))
	must(t, os.WriteFile(filepath.Join(w.root, RegistryDir, "file.sock"), nil, 0o600))
	const others = 9
	var drivers []*csidriver.Driver
	for i := range others {
		drivers = append(drivers, w.startDriver(fmt.Sprintf("d%d.test.belay.dev", i)))
	}
	w.plugins()
	for _, d := range drivers {
		d.WantRegistered("")
	}
	if status := deep.Registered(); !status.PluginRegistered {
		t.Errorf("not registered: %s", status.Error)
	}
	if got := w.knows(); len(got.Drivers) != others+1 {
		t.Errorf("known are %+v", got.Drivers)
	}
	// And the same while it runs.
	live := w.registrar("c/live-reg.sock", w.behind("1.5.0"))
	if status := live.Registered(); !status.PluginRegistered {
		t.Errorf("not registered: %s", status.Error)
	}
	second := w.registrar(".second.sock", w.behind("1.9.0"))
	last := w.registrar("last.sock", w.behind("1.6.0"))
	if status := last.Registered(); !status.PluginRegistered {
		t.Errorf("not registered: %s", status.Error)
	}
	for _, r := range []*csidriver.Driver{hidden, below, second} {
		if len(r.Registrations) > 0 {
			t.Errorf("%s is hidden and was notified of %+v", r.Address, <-r.Registrations)
		}
	}
}

// TestPluginReRegistration: a recreated socket is queried again, also if another driver listened at its path before.
// That driver is unregistered.
func TestPluginReRegistration(t *testing.T) {
	w := newWorld(t)
	w.plugins()
	w.driver.WantRegistered("")
	for range 10 {
		w.driver.Stop()
		w.driver.Start()
		w.driver.WantRegistered("")
	}
	w.wantCSINode()
	for i := range 10 {
		w.driver.Stop()
		name := fmt.Sprintf("d%d.test.belay.dev", i)
		w.driver.Lock()
		w.driver.Plugin = &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, SupportedVersions: []string{"1.0.0"}}
		w.driver.Unlock()
		w.driver.Start()
		w.driver.WantRegistered("")
		wait.Until(w, name+" alone is known", func() bool {
			got := w.knows()
			return len(got.Drivers) == 1 && got.Drivers[0].Name == name && len(got.IDs) == 1
		})
	}
}

// TestPluginRegistrationSameName: of two sockets that name one driver the second must have a
// higher version. When the first goes, the other one is registered.
func TestPluginRegistrationSameName(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	first := w.registrar("first.sock", w.behind("1.1.0"))
	w.plugins()
	if status := first.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	for name, version := range map[string]string{"lower": "1.0.0", "equal": "1.1.0"} {
		r := w.registrar(name+".sock", w.behind(version))
		status := r.Registered()
		if want := "Another driver with the same name is already registered with a higher supported version"; status.PluginRegistered || !strings.Contains(status.Error, want) {
			t.Errorf("%s version: notified of %+v, want %q", name, status, want)
		}
		r.Stop()
	}
	other := w.behind("1.1.0") // of another name, at the same socket
	other.Name = "other." + other.Name
	beside := w.registrar("other.sock", other)
	if status := beside.Registered(); !status.PluginRegistered {
		t.Errorf("another driver at the same endpoint: %s", status.Error)
	}
	beside.Stop()
	wait.Until(w, "it is forgotten", func() bool { return len(w.knows().Drivers) == 1 })
	higher := w.registrar("higher.sock", w.behind("1.2.0"))
	if status := higher.Registered(); !status.PluginRegistered {
		t.Errorf("higher version: %s", status.Error)
	}
	// The one that was replaced goes; kubelet would drop the driver by its name.
	first.Stop()
	low := w.registrar("low.sock", w.behind("1.0.5"))
	if status := low.Registered(); status.PluginRegistered {
		t.Error("the driver was dropped with the socket that it had been registered at before")
	}
	w.wantCSINode()
	higher.Stop()
	for status := low.Registered(); !status.PluginRegistered; status = low.Registered() {
		t.Logf("not yet: %s", status.Error)
	}
	w.wantCSINode()
}

// TestRefusedSocketsAreRetriedWhenDriverLeaves, and not only when their back-off ends.
func TestRefusedSocketsAreRetriedWhenDriverLeaves(t *testing.T) {
	p := onlyPlugins(t, ignore)
	r := p.registry
	must(t, r.open())
	defer r.watcher.close()
	defer r.queue.ShutDown()
	r.sockets = map[string]int{"/there": 1, "/refused": 2, "/gone": 0}
	r.registered = map[string]int{"/there": 1}
	p.drivers["d"] = &driver{name: "d", socket: "/gone", stop: func() {}, client: dial(t)}
	r.drop("/gone", "")
	if n := r.queue.Len(); n != 1 {
		t.Fatalf("%d sockets are asked again, want 1", n)
	}
	if socket, _ := r.queue.Get(); socket != "/refused" {
		t.Errorf("%s is asked again", socket)
	}
}

func dial(t *testing.T) *csi.Node {
	t.Helper()
	client, err := csi.DialNode("/nowhere", nil)
	must(t, err)
	return client
}

// TestValidatePlugin has upstream's cases: which lists of versions do.
func TestValidatePlugin(t *testing.T) {
	r := onlyPlugins(t, ignore).registry
	for _, test := range []struct {
		versions []string
		want     string // empty: refused
	}{
		{[]string{"v1.0.0"}, "1.0.0"},
		{[]string{"0.3.0"}, ""},
		{[]string{"0.2.0"}, ""},
		{[]string{"0.2.0", "v0.3.0"}, ""},
		{[]string{"0.2.0", "v1.0.0"}, "1.0.0"},
		{[]string{"0.2.0", "v1.2.3"}, "1.2.3"},
		{[]string{"v1.2.3", "v0.3.0"}, "1.2.3"},
		{[]string{"v1.2.3", "v0.3.0", "2.0.1"}, "1.2.3"},
		{[]string{"v1.2.3", "4.9.12", "v0.3.0", "2.0.1"}, "1.2.3"},
		{[]string{"v1.2.3", "boo", "v0.3.0", "2.0.1"}, "1.2.3"},
		{[]string{"4.9.12", "2.0.1"}, ""},
		{[]string{}, ""},
		{[]string{"var", "boo", "foo"}, ""},
	} {
		t.Run(strings.Join(test.versions, " "), func(t *testing.T) {
			got := ""
			if v, err := r.validate("/s", pluginNamed("test.plugin", test.versions...)); err == nil {
				got = v.String()
			}
			if got != test.want {
				t.Errorf("highest is %q, want %q", got, test.want)
			}
		})
	}
}

func pluginNamed(name string, versions ...string) csi.Plugin {
	return csi.Plugin{IsCSI: true, Type: registration.CSIPlugin, Name: name, Versions: versions}
}
