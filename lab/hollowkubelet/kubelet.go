package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	clientset "k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	remote "k8s.io/cri-client/pkg"
	fakeremote "k8s.io/cri-client/pkg/fake"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	"k8s.io/kubernetes/pkg/kubelet/metrics/collectors"
	"k8s.io/kubernetes/pkg/kubemark"
	utilfs "k8s.io/kubernetes/pkg/util/filesystem"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"

	"belay.dev/belay/lab/hollowkubelet/statuses"
)

// startLimit bounds the time from the start of a kubelet to the first status that it writes: it registers its node before.
const startLimit = 2 * time.Minute

// start starts one kubelet and returns when it has written its first status, which it does as soon as its node is registered
// (tryUpdateNodeStatus in pkg/kubelet/kubelet_node_status.go: none was reported before).
func (f *fleet) start(ctx context.Context, node string) error {
	dir := filepath.Join(f.dir, node)
	config, err := f.load(ctx, node, dir)
	if err != nil {
		return err
	}
	flags := options.NewKubeletFlags()
	flags.RootDirectory, flags.CertDirectory, flags.HostnameOverride = dir, filepath.Join(dir, "pki"), node
	// The address of the node is then its name, and nothing is looked up in DNS.
	flags.CloudProvider = "external"
	written := make(chan struct{})
	deps, err := f.dependencies(ctx, flags, config, sync.OnceFunc(func() { close(written) }))
	if err != nil {
		return err
	}
	server := &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}
	if err := kubeletapp.RunKubelet(ctx, server, deps); err != nil {
		return fmt.Errorf("run the kubelet of %s: %w", node, err)
	}
	select {
	case <-written:
	case <-time.After(startLimit):
		return fmt.Errorf("the kubelet of %s wrote no status within %v", node, startLimit)
	}
	return unregisterCollectors()
}

// load reads kubelet's configuration as kubelet does, with its defaults, and changes what a kubelet without a machine cannot do, as kubemark
// does (pkg/kubemark/hollow_kubelet.go). The API of kubelet is not served: a port for each would be the only difference.
func (f *fleet) load(ctx context.Context, node, dir string) (*kubeletconfig.KubeletConfiguration, error) {
	loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, f.config)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's configuration %s: %w", f.config, err)
	}
	config, err := loader.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's configuration %s: %w", f.config, err)
	}
	for _, sub := range []string{"", "pod-logs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("make the folder of node %s: %w", node, err)
		}
	}
	config.EnableServer, config.ReadOnlyPort, config.HealthzPort = false, 0, 0
	config.CgroupRoot, config.CgroupsPerQOS, config.EnforceNodeAllocatable = "", false, nil
	config.PodLogsDir = filepath.Join(dir, "pod-logs")
	config.ResolverConfig, config.ProviderID = "", "kubemark://"+node
	return config, nil
}

// dependencies are those of kubemark, but for the volume plugin for CSI: it keeps its node in a variable of its package, so that there is
// one for each process (pkg/volume/csi/csi_plugin.go). A node without volumes computes and writes the same status without it.
func (f *fleet) dependencies(
	ctx context.Context, flags *options.KubeletFlags, config *kubeletconfig.KubeletConfiguration, written func(),
) (*kubelet.Dependencies, error) {
	client, heartbeat, err := f.clients(flags.HostnameOverride, config)
	if err != nil {
		return nil, err
	}
	runtime, endpoint := fakeremote.NewFakeRemoteRuntime(), "unix://"+filepath.Join(flags.RootDirectory, "cri.sock")
	if err := runtime.Start(endpoint); err != nil {
		return nil, fmt.Errorf("start the fake runtime of %s: %w", flags.HostnameOverride, err)
	}
	service, err := remote.NewRemoteRuntimeService(ctx, endpoint, config.RuntimeRequestTimeout.Duration, noop.NewTracerProvider(), false)
	if err != nil {
		return nil, fmt.Errorf("connect to the fake runtime of %s: %w", flags.HostnameOverride, err)
	}
	machine := &machine{Fake: cadvisortest.Fake{NodeName: flags.HostnameOverride}, ticks: &f.ticks}
	deps := kubemark.NewHollowKubelet(flags, config, client, heartbeat, machine, runtime.ImageService, service, cm.NewStubContainerManager()).KubeletDeps
	deps.HeartbeatClient = statuses.Client{Interface: deps.HeartbeatClient, Count: &f.ticks, Written: written}
	deps.VolumePlugins = slices.DeleteFunc(deps.VolumePlugins, func(p volume.VolumePlugin) bool { return p.GetPluginName() == csi.CSIPluginName })
	return deps, nil
}

// clients are those of a kubelet (cmd/kubelet/app/server.go): with the user and the groups of its node, and connections of their own. The
// credential is the administrator's, who impersonates the node.
func (f *fleet) clients(node string, config *kubeletconfig.KubeletConfiguration) (client, heartbeat *clientset.Clientset, err error) {
	rest, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read the credential %s: %w", f.kubeconfig, err)
	}
	rest.Impersonate = restclient.ImpersonationConfig{UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"}}
	rest.UserAgent, rest.ContentType = "hollow-kubelet", config.ContentType
	rest.QPS, rest.Burst = float32(config.KubeAPIQPS), int(config.KubeAPIBurst)
	// Clients of the same server with the same credential share connections, unless they have a dialer.
	rest.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if client, err = clientset.NewForConfig(rest); err != nil {
		return nil, nil, fmt.Errorf("make the client of %s: %w", node, err)
	}
	beat := restclient.CopyConfig(rest)
	beat.QPS = -1
	beat.Timeout = min(config.NodeStatusUpdateFrequency.Duration, time.Duration(config.NodeLeaseDurationSeconds)*time.Second)
	if heartbeat, err = clientset.NewForConfig(beat); err != nil {
		return nil, nil, fmt.Errorf("make the heartbeat client of %s: %w", node, err)
	}
	return client, heartbeat, nil
}

// machine is a fake cAdvisor that counts the statuses that its kubelet computes: each asks once for the versions
// (pkg/kubelet/kubelet_node_status.go, defaultNodeStatusFuncs), also that of the node to be registered (initialNode), and nothing else does
// while kubelet's own API is not served. A status that has not changed is not sent, so that the API server cannot count them. One that cannot be sent is taken back, see package statuses.
type machine struct {
	cadvisortest.Fake

	ticks *atomic.Int64
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	m.ticks.Add(1)
	return m.Fake.VersionInfo()
}

// disk is the node's only one, half full. The fake has none, which kubelet complains about every ten seconds.
var disk = cadvisorapiv2.FsInfo{Device: "/dev/hollow", Mountpoint: "/", Capacity: 100 << 30, Available: 50 << 30, Usage: 50 << 30}

func (m *machine) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error)    { return disk, nil }
func (m *machine) RootFsInfo() (cadvisorapiv2.FsInfo, error)                     { return disk, nil }
func (m *machine) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) { return disk, nil }
func (m *machine) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error)             { return disk, nil }

// unregisterCollectors makes room for the collectors of the next kubelet of this process: it registers them under the same names
// (initializeModules in pkg/kubelet/kubelet.go), and panics where that was done before.
func unregisterCollectors() error {
	for _, same := range []metrics.StableCollector{collectors.NewVolumeStatsCollector(nil), collectors.NewLogMetricsCollector(nil)} {
		// The names of a collector are known once it was to be registered.
		err := legacyregistry.CustomRegister(same)
		if _, is := errors.AsType[prometheus.AlreadyRegisteredError](err); !is {
			return fmt.Errorf("find the metrics of the last kubelet: %w", err)
		}
		if !legacyregistry.Registerer().Unregister(same) || !prometheus.Unregister(same) {
			return errors.New("the metrics of the last kubelet cannot be unregistered")
		}
	}
	return nil
}
