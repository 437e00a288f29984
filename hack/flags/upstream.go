package main

import (
	"fmt"
	"os"
	"regexp"
)

// flagsOf are the flags of a program of upstream's that one of belay's replaces: the defaults of those that both have.
type flagsOf struct {
	name string
	// has reports whether the program has the flag, and its default if that is another one.
	has func(flag string) (value string, ok bool)
}

// The flags that both have, in Kubernetes v1.36.3. The value is upstream's default where it is another one.
var (
	// cmd/kube-controller-manager/app/options, k8s.io/controller-manager/options, k8s.io/component-base/config/options and logs/api/v1.
	controllerManager = map[string]string{
		"attach-detach-reconcile-sync-period": "", "disable-attach-detach-reconcile-sync": "", "disable-force-detach-on-timeout": "",
		"controllers": "*", "kubeconfig": "", "kube-api-qps": "20", "kube-api-burst": "", "version": "",
		"leader-elect": "", "leader-elect-lease-duration": "", "leader-elect-renew-deadline": "", "leader-elect-retry-period": "",
		"leader-elect-resource-lock": "", "leader-elect-resource-name": "kube-controller-manager", "leader-elect-resource-namespace": "",
	}
	// cmd/kubelet/app/options.
	kubelet = map[string]string{
		"kubeconfig": "", "root-dir": "", "container-runtime-endpoint": "unix:///run/containerd/containerd.sock", "volume-stats-agg-period": "", "v": "",
	}
	// k8s.io/component-base/logs/api/v1, in all of them.
	logging = map[string]string{
		"log-flush-frequency": "", "log-json-info-buffer-size": "", "log-json-split-stream": "", "log-text-info-buffer-size": "",
		"log-text-split-stream": "", "logging-format": "", "v": "", "vmodule": "",
	}
)

// differing is a row of the table of docs/adopt-attacher.md, which a test compares with the help of both programs.
var differing = regexp.MustCompile("(?m)^\\| `--(\\S+)` \\| (\\S+) \\| (\\S+) \\|")

func readUpstream() (map[string]flagsOf, error) {
	table, err := os.ReadFile("docs/adopt-attacher.md")
	if err != nil {
		return nil, fmt.Errorf("read which flags csi-attacher has too: %w", err)
	}
	other := map[string]string{}
	for _, row := range differing.FindAllStringSubmatch(string(table), -1) {
		other[row[1]] = row[2]
	}
	return map[string]flagsOf{
		"kube-controller-manager": {"kube-controller-manager", listed(controllerManager, logging)},
		"kubelet":                 {"the kubelet", listed(kubelet)},
		"csi-attacher": {"csi-attacher", func(flag string) (string, bool) {
			return other[flag], other[flag] != "none"
		}},
	}, nil
}

func listed(sets ...map[string]string) func(string) (string, bool) {
	return func(flag string) (string, bool) {
		for _, set := range sets {
			if value, ok := set[flag]; ok {
				return value, true
			}
		}
		return "", false
	}
}

// origin is a sentence that reports whether upstream's program has the flag too.
func (f flagsOf) origin(flag string) string {
	if f.has == nil {
		return ""
	}
	value, ok := f.has(flag)
	switch {
	case !ok:
		return " Not a flag of " + f.name + "."
	case value != "":
		return " Also a flag of " + f.name + ", whose default is `" + value + "`."
	default:
		return " Also a flag of " + f.name + "."
	}
}
