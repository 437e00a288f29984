package nodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// kubeletConfiguration is a kubelet as it comes, but for what one machine with
// several nodes needs: cgroups of its own, no touching of the machine's network, no
// eviction because of a disk that all nodes share.
func kubeletConfiguration(config Config) kubeletconfig.KubeletConfiguration {
	none := map[string]string{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}
	return kubeletconfig.KubeletConfiguration{
		TypeMeta:     metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Address:      config.KubeletAddress,
		Port:         int32(config.KubeletPort),
		ReadOnlyPort: 0,
		HealthzPort:  new(int32), // 0: off; /healthz is served on Port too
		TLSCertFile:  config.ServingCertFile, TLSPrivateKeyFile: config.ServingKeyFile,
		Authentication: kubeletconfig.KubeletAuthentication{
			X509:      kubeletconfig.KubeletX509Authentication{ClientCAFile: config.ClientCAFile},
			Webhook:   kubeletconfig.KubeletWebhookAuthentication{Enabled: new(false)},
			Anonymous: kubeletconfig.KubeletAnonymousAuthentication{Enabled: new(false)},
		},
		Authorization:            kubeletconfig.KubeletAuthorization{Mode: kubeletconfig.KubeletAuthorizationModeWebhook},
		ContainerRuntimeEndpoint: "unix://" + containerdSocket,
		CgroupRoot:               "/" + config.Cgroup(),
		CgroupDriver:             "cgroupfs",
		FailCgroupV1:             new(false),
		FailSwapOn:               new(false),
		EnforceNodeAllocatable:   []string{},
		EvictionHard:             none,

		ImageGCHighThresholdPercent: new(int32(100)),
		MakeIPTablesUtilChains:      new(false),
		NodeStatusUpdateFrequency:   config.NodeStatusUpdateFrequency,
		NodeStatusReportFrequency:   reportFrequency(config),
		NodeLeaseDurationSeconds:    int32(config.NodeLeaseDuration.Seconds()),
		PodLogsDir:                  filepath.Join(config.Dir, "pod-logs"),
		VolumePluginDir:             filepath.Join(config.RootDir(), "volume-plugins"),
		ResolverConfig:              new(""),
		// No server answers there; without it each pod gets a warning.
		ClusterDNS:    []string{loopbackIP},
		ClusterDomain: "cluster.local",
	}
}

// reportFrequency is kubelet's default, which keeps a kubelet that looks at its status often from writing it as often: left unset, the one
// follows the other wherever the other is set, to 10 s too.
func reportFrequency(config Config) metav1.Duration {
	if config.NodeStatusUpdateFrequency.Duration <= 10*time.Second {
		return metav1.Duration{Duration: 5 * time.Minute}
	}
	return metav1.Duration{}
}

func kubeletArgs(config Config, file string) []string {
	return append([]string{
		"--config", file,
		"--kubeconfig", config.Kubeconfig,
		"--hostname-override", config.Name,
		"--root-dir", config.RootDir(),
		"--cert-dir", filepath.Join(config.Dir, "pki"),
		// kubelet accepts no loopback address for a node; AdoptNode acts as the cloud provider.
		"--cloud-provider", "external",
		"--v", strconv.Itoa(config.Verbosity),
	}, config.AgentArgs...)
}

// runKubelet starts the kubelet once its runtime has the images.
func runKubelet(ctx context.Context, config Config, kept *children) error {
	if err := importImages(ctx, config, kept); err != nil {
		return err
	}
	raw, err := yaml.Marshal(kubeletConfiguration(config))
	if err != nil {
		return fmt.Errorf("encode kubelet configuration: %w", err)
	}
	file := filepath.Join(config.Dir, "kubelet.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return fmt.Errorf("write kubelet configuration: %w", err)
	}
	kept.keep(ctx, child{name: ChildAgent, path: config.Programs.Kubelet, args: kubeletArgs(config, file)})
	return nil
}
