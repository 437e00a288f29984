package plugins

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// start runs plugins and gives them a driver at an endpoint outside the registry.
func (p *Plugins) start(t *testing.T) (*world, *csidriver.Driver) {
	t.Helper()
	w := &world{TB: t, ctx: t.Context(), name: "n", root: p.config.Root.Path(".")}
	d := w.newDriver("d")
	d.Address = filepath.Join(w.root, "plugins/d.sock")
	w.driver = d
	must(t, p.Open())
	d.Start()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return w, d
}

// TestPluginHandlers: they are called for each change, and may call back, which takes the locks.
func TestPluginHandlers(t *testing.T) {
	events := make(chan string, 100)
	var p *Plugins
	hear := func(what string) func(string) {
		return func(driver string) {
			client, has := p.Registered(driver)
			if registered, _ := p.Sockets(); (client != nil) != (len(registered) > 0) {
				t.Errorf("%s: client %v, registered are %v", what, client, registered)
			}
			p.LimitExhausted(driver)
			if has != nil && what == "reconnected" {
				t.Errorf("the capabilities of the version before are kept: %+v", has)
			}
			if client == nil {
				events <- "gone " + driver
				return
			}
			events <- what + " " + driver
		}
	}
	on := ignore
	on.Changed, on.Reconnected = hear("changed"), hear("reconnected")
	on.Measure = func(driver string) func(csi.Call) {
		p.LimitExhausted(driver)
		return nil
	}
	p = onlyPlugins(t, on)
	until := func(want string) {
		t.Helper()
		for wait.For(t, want, events) != want {
			continue
		}
	}
	stages := func(want bool) {
		t.Helper()
		if _, has, err := p.Capabilities(t.Context(), "d"); err != nil || has.Stage != want {
			t.Errorf("capabilities are %+v (%v), want Stage %v", has, err, want)
		}
	}
	w, d := p.start(t)
	first := w.at("d-reg.sock", "1.0.0")
	until("reconnected d")
	until("changed d")
	if status := first.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	stages(true)
	d.Stop()
	d.Lock()
	d.NodeServices = nil
	d.Unlock()
	stages(true) // as last known, until another one answers
	d.Start()
	until("reconnected d")
	until("changed d")
	stages(false)
	first.Stop()
	until("gone d")
	if _, err := p.Client("d"); err == nil {
		t.Error("a driver that is gone has a client")
	}
	if _, _, err := p.Capabilities(t.Context(), "d"); err == nil || err.Error() != "driver d is no longer registered on this node" {
		t.Errorf("capabilities of a driver that is gone: %v", err)
	}
}

// TestPluginsTwoSocketsOfOneDriver: the second is refused while the first is there, and then takes its place.
func TestPluginsTwoSocketsOfOneDriver(t *testing.T) {
	p := onlyPlugins(t, ignore)
	w, _ := p.start(t)
	first := w.at("first.sock", "1.0.0")
	if status := first.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	client, err := p.Client("d")
	must(t, err)
	second := w.at("second.sock", "1.0.0")
	if status := second.Registered(); !strings.Contains(status.Error, "Another driver with the same name is already registered") {
		t.Errorf("the second one was notified of %+v", status)
	}
	if still, _ := p.Registered("d"); still != client {
		t.Error("the one that was refused took the connection")
	}
	if registered, present := p.Sockets(); len(present) != 2 || !cmp.Equal(registered, []string{first.Address}) {
		t.Errorf("registered %v, present %v", registered, present)
	}
	first.Stop()
	for status := second.Registered(); !status.PluginRegistered; status = second.Registered() {
		t.Logf("not yet: %s", status.Error)
	}
	if registered, present := p.Sockets(); len(present) != 1 || !cmp.Equal(registered, []string{second.Address}) {
		t.Errorf("registered %v, present %v", registered, present)
	}
}

// TestPluginsRefreshTheLimit of a driver whose CSIDriver asks for it, when the storage reports that the node is full.
func TestPluginsRefreshTheLimit(t *testing.T) {
	p := onlyPlugins(t, ignore)
	w, _ := p.start(t)
	w.at("d-reg.sock", "1.0.0").Registered()
	limit := func() int32 {
		object, err := p.config.Client.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
		must(t, err)
		return limitOf(object.Spec.Drivers[0])
	}
	w.limit(2)
	p.LimitExhausted("d")
	p.refreshLimit(t.Context(), "d")
	if got := limit(); got != 7 {
		t.Errorf("the allocatable count is %d although no driver wants it refreshed", got)
	}
	must(t, p.csiDrivers.GetStore().Add(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: new(int64(10))},
	}))
	p.LimitExhausted("d")
	wait.Until(w, "the allocatable count is refreshed", func() bool { return limit() == 2 })
}

// TestPluginsSupportedModes: which kinds of volumes a driver has.
func TestPluginsSupportedModes(t *testing.T) {
	p := onlyPlugins(t, ignore)
	const persistent, ephemeral = storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral
	for name, test := range map[string]struct {
		modes []storagev1.VolumeLifecycleMode // nil: no CSIDriver
		asked storagev1.VolumeLifecycleMode
		want  string
	}{
		"persistent, no CSIDriver": {nil, persistent, ""},
		"ephemeral, no CSIDriver":  {nil, ephemeral, `volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`},
		"persistent":               {[]storagev1.VolumeLifecycleMode{persistent}, persistent, ""},
		"ephemeral alone":          {[]storagev1.VolumeLifecycleMode{ephemeral}, persistent, `volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])`},
		"both":                     {[]storagev1.VolumeLifecycleMode{persistent, ephemeral}, ephemeral, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []any
			if test.modes != nil {
				objects = append(objects, &storagev1.CSIDriver{
					ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{VolumeLifecycleModes: test.modes},
				})
			}
			must(t, p.csiDrivers.GetStore().Replace(objects, ""))
			got := ""
			if err := p.Rules("d").Supports(test.asked); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
