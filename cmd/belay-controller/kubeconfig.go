package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
)

// daemonConfig returns the connection of the controller: that of the kubeconfig file, or the in-cluster configuration.
func daemonConfig(ctx context.Context, kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	switch {
	case clientcmd.IsEmptyConfig(err) && kubeconfig == "": // client-go advises a deprecated environment variable
		return nil, errors.New("load the in-cluster configuration: not in a pod with a service account token: set --kubeconfig")
	case err != nil:
		return nil, fmt.Errorf("load the kubeconfig %q: %w", kubeconfig, err)
	}
	return config, reach(ctx, config, preflight.Cluster{Kubeconfig: kubeconfig})
}

// personConfig returns the connection that kubectl would use, and its source.
func personConfig(ctx context.Context, kubeconfig string) (*rest.Config, preflight.Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, preflight.Cluster{}, fmt.Errorf("load the kubeconfig (set --kubeconfig or $KUBECONFIG): %w", err)
	}
	cluster := preflight.Cluster{Server: config.Host}
	if raw, err := loader.RawConfig(); err == nil {
		if current, ok := raw.Contexts[raw.CurrentContext]; ok {
			cluster.Context, cluster.Kubeconfig = raw.CurrentContext, current.LocationOfOrigin
		}
	}
	return config, cluster, reach(ctx, config, cluster)
}

// reach checks the connection and sets the user agent.
func reach(ctx context.Context, config *rest.Config, cluster preflight.Cluster) error {
	// The API server derives the field manager from the part before the slash.
	config.UserAgent = kube.FieldManager + "/" + version
	if err := kube.Reach(ctx, config); err != nil {
		return fmt.Errorf("%w; check that the API server is running and that its address and certificate authority in the %s are right", err, cluster.Source())
	}
	return nil
}

// readers returns clients without a cache or a rate limit.
func readers(config *rest.Config) (*kubernetes.Clientset, error) {
	config = kube.WithProtobuf(config)
	config.QPS = -1
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("set up the clients: %w", err)
	}
	return clients, nil
}
