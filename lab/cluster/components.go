package cluster

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
	"belay.dev/belay/lab/upstream"
)

// Names of components.
const (
	componentEtcd        = "etcd"
	componentAPIServer   = "kube-apiserver"
	componentKCM         = "kube-controller-manager"
	componentScheduler   = "kube-scheduler"
	componentProvisioner = "csi-provisioner"
	componentController  = "attach-controller"
	componentAttacher    = "attacher"
	componentFabric      = "fabric"
)

// Lease times of belay's controller and of both attachers. Shorter than the default of 15 s, so
// that a killed one is followed by its next run in seconds; the same for both planes.
const (
	leaseDuration = "6s"
	renewDeadline = "4s"
	retryPeriod   = "1s"
)

// specs makes the command lines of one lab.
type specs struct {
	options  Options
	paths    paths
	ports    ports
	upstream upstream.Programs
	own      siblings
}

// sidecarName names the sidecar of the i-th driver: the first driver's has the plain name.
func sidecarName(component string, drivers []string, i int) string {
	if i == 0 {
		return component
	}
	short, _, _ := strings.Cut(drivers[i], ".")
	return component + "-" + short
}

// attachDrivers are the drivers that have an attach step.
func (o Options) attachDrivers() []string {
	return slices.DeleteFunc(slices.Clone(o.Drivers), func(driver string) bool { return driver == labdisk.DriverLocal })
}

func (s specs) component(name, path string, args ...string) proc.Spec {
	return proc.Spec{
		Name: name, Path: path, Args: args, Env: shippedEnv(filepath.Base(path)), Hostname: hostname(name),
		LogFile: s.paths.log(name), Dir: s.paths.run(), Restart: true,
	}
}

// kubeconfig is the credential of a component, which leads to the API server over the component's own link. A bare lab has no links: there
// it is the one of the identity.
func (s specs) kubeconfig(component, identity string) string {
	if _, linked := s.ports.Uplinks[component]; linked {
		return s.paths.linkedKubeconfig(component)
	}
	return s.paths.kubeconfig(identity)
}

// apiClients are the components that have a link to the API server, each with its identity there.
func (o Options) apiClients() map[string]string {
	if o.Bare {
		return nil
	}
	attacher := identityAttacher
	if o.Plane == PlaneUpstream {
		attacher = identityCSIAttacher
	}
	all := map[string]string{componentKCM: identityKCM, componentScheduler: identityScheduler}
	for _, name := range o.replicas(componentController) {
		all[name] = identityController
	}
	for i := range o.Drivers {
		all[sidecarName(componentProvisioner, o.Drivers, i)] = identityProvisioner
	}
	for i := range o.attachDrivers() {
		for _, name := range o.replicas(sidecarName(componentAttacher, o.attachDrivers(), i)) {
			all[name] = attacher
		}
	}
	if o.Recovery != "" {
		for _, part := range recoveryIdentities() {
			all[part] = part
		}
	}
	return all
}

// roomy lets a program's heap grow to five times of what lives in it before it is collected. The
// heaps of etcd and the API server are small when they have just started, and are collected often, on
// the same few cores as all else: the first moves of a lab then show that more than the plane. A
// real cluster's heaps are large and its cores its own. What is compared runs as shipped. The limit
// keeps the garbage of a large state (`belay-lab bench scale`) from taking the machine's memory.
func roomy(spec proc.Spec) proc.Spec {
	spec.Env = append(spec.Env, "GOGC=400", "GOMEMLIMIT=10GiB")
	return spec
}

// etcd syncs each write to the disk, as a cluster's does: the figures of the lab then hold for
// real clusters, and a power cut of the machine loses nothing that was acknowledged.
func (s specs) etcd() proc.Spec {
	client, peer := "https://"+address(s.ports.Etcd), "https://"+address(s.ports.EtcdPeer)
	spec := s.component(componentEtcd, s.upstream.Path("etcd"),
		"--name=lab", "--data-dir="+s.paths.etcd(),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=lab="+peer,
		"--client-cert-auth", "--trusted-ca-file="+s.paths.cert("etcd-ca.crt"),
		"--cert-file="+s.paths.cert("etcd.crt"), "--key-file="+s.paths.cert("etcd.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+s.paths.cert("etcd-ca.crt"),
		"--peer-cert-file="+s.paths.cert("etcd.crt"), "--peer-key-file="+s.paths.cert("etcd.key"),
		// Room for the largest state of `belay-lab bench scale`; etcd's default of 2 GiB is not enough.
		"--quota-backend-bytes="+strconv.Itoa(8<<30),
		"--log-level=warn")
	return roomy(spec)
}

func (s specs) apiServer() proc.Spec {
	spec := roomy(s.component(componentAPIServer, s.upstream.Path("kube-apiserver"),
		"--bind-address="+loopback, "--advertise-address="+loopback, "--secure-port="+strconv.Itoa(s.ports.APIServer),
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range="+serviceRange,
		"--tls-cert-file="+s.paths.cert("apiserver.crt"), "--tls-private-key-file="+s.paths.cert("apiserver.key"),
		"--client-ca-file="+s.paths.cert("ca.crt"), "--anonymous-auth=false",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--etcd-servers=https://"+address(s.ports.Etcd), "--etcd-cafile="+s.paths.cert("etcd-ca.crt"),
		"--etcd-certfile="+s.paths.cert("apiserver-etcd-client.crt"), "--etcd-keyfile="+s.paths.cert("apiserver-etcd-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+s.paths.cert("sa.pub"), "--service-account-signing-key-file="+s.paths.cert("sa.key"),
		// Without these kube-controller-manager waits for a CA that never comes.
		"--requestheader-client-ca-file="+s.paths.cert("front-proxy-ca.crt"), "--requestheader-allowed-names="+frontProxyUser,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+s.paths.cert("front-proxy-client.crt"), "--proxy-client-key-file="+s.paths.cert("front-proxy-client.key"),
		// Each node serves at a loopback address of its own.
		"--kubelet-certificate-authority="+s.paths.cert("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate="+s.paths.cert("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+s.paths.cert("apiserver-kubelet-client.key")))
	if s.options.Audit {
		spec.Args = append(spec.Args, auditArgs(s.paths)...)
	}
	return spec
}

// controllerManager runs all controllers as shipped; with upstream's plane attach/detach too.
func (s specs) controllerManager(plane string) proc.Spec {
	controllers := "*"
	if plane != PlaneUpstream {
		controllers = "*,-persistentvolume-attach-detach-controller"
	}
	// There is only one, and after a kill it must not wait for its own lease.
	args := []string{"--leader-elect=false"}
	if s.options.NodeMonitorGrace > 0 {
		args = append(args, "--node-monitor-grace-period="+s.options.NodeMonitorGrace.String())
	}
	return s.manager(controllers, args...)
}

// manager is a kube-controller-manager with the controllers named.
func (s specs) manager(controllers string, args ...string) proc.Spec {
	config := s.kubeconfig(componentKCM, identityKCM)
	spec := s.component(componentKCM, s.upstream.Path("kube-controller-manager"),
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address="+loopback, "--secure-port="+strconv.Itoa(s.ports.ControllerManager),
		"--tls-cert-file="+s.paths.cert("control-plane.crt"), "--tls-private-key-file="+s.paths.cert("control-plane.key"),
		"--controllers="+controllers, "--use-service-account-credentials=true",
		"--service-account-private-key-file="+s.paths.cert("sa.key"), "--root-ca-file="+s.paths.cert("ca.crt"),
		// Its default lies outside the lab's folder, and it makes it.
		"--flex-volume-plugin-dir="+filepath.Join(s.paths.dir(), "flexvolume"))
	spec.Args = append(spec.Args, args...)
	return spec
}

func (s specs) scheduler() proc.Spec {
	config := s.kubeconfig(componentScheduler, identityScheduler)
	return s.component(componentScheduler, s.upstream.Path("kube-scheduler"),
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address="+loopback, "--secure-port="+strconv.Itoa(s.ports.Scheduler),
		"--tls-cert-file="+s.paths.cert("control-plane.crt"), "--tls-private-key-file="+s.paths.cert("control-plane.key"),
		"--leader-elect=false")
}

func (s specs) fabric() proc.Spec {
	args := []string{"labdisk", "fabric", "--dir", s.paths.fabric(), "--listen", s.paths.fabricSocket(),
		"--csi-dir", s.paths.csiDir(), "--drivers", strings.Join(s.options.Drivers, ",")}
	if s.options.Permissive {
		args = append(args, "--permissive")
	}
	return s.component(componentFabric, s.own.path("belay-lab"), args...)
}

// provisioners make and delete volumes, one per driver.
func (s specs) provisioners() []proc.Spec {
	var all []proc.Spec
	for i, driver := range s.options.Drivers {
		name := sidecarName(componentProvisioner, s.options.Drivers, i)
		all = append(all, s.component(name, s.upstream.Path("csi-provisioner"),
			"--csi-address="+s.paths.csiSocket(driver), "--kubeconfig="+s.kubeconfig(name, identityProvisioner),
			"--http-endpoint="+address(s.ports.Sidecars[name]), "--default-fstype=ext4", "--extra-create-metadata=true",
			"--leader-election=false", "--timeout=30s"))
	}
	return all
}

// attachPlane is belay's controller and attachers, or upstream's attachers; upstream's controller
// is inside kube-controller-manager.
func (s specs) attachPlane() []proc.Spec {
	var all []proc.Spec
	verbosity := "--v=" + strconv.Itoa(s.options.Verbosity)
	program, config, namespace := s.own.path("belay-attacher"), identityAttacher, belayNamespace
	if s.options.Plane == PlaneUpstream {
		program, config, namespace = s.upstream.Path("csi-attacher"), identityCSIAttacher, labNamespace
	} else {
		var args []string
		if s.options.Recovery != "" {
			args = append([]string{"--controllers=attachdetach,recovery"}, s.recoveryArgs("actor")...)
		}
		for _, name := range s.options.replicas(componentController) {
			all = append(all, s.controller(name, s.kubeconfig(name, identityController), args))
		}
	}
	drivers := s.options.attachDrivers()
	for i, driver := range drivers {
		for _, name := range s.options.replicas(sidecarName(componentAttacher, drivers, i)) {
			spec := s.component(name, program,
				"--csi-address="+s.paths.csiSocket(driver), "--kubeconfig="+s.kubeconfig(name, config),
				"--http-endpoint="+address(s.ports.Sidecars[name]),
				"--leader-election", "--leader-election-namespace="+namespace, "--leader-election-lease-duration="+leaseDuration,
				"--leader-election-renew-deadline="+renewDeadline, "--leader-election-retry-period="+retryPeriod, verbosity)
			spec.Args = append(spec.Args, s.options.AttacherArgs...)
			all = append(all, spec)
		}
	}
	return all
}

// controller is belay-controller, or its standby, with the lab's lease times; what args say wins over them.
func (s specs) controller(name, kubeconfig string, args []string) proc.Spec {
	lease := []string{
		"--leader-elect-lease-duration=" + leaseDuration, "--leader-elect-renew-deadline=" + renewDeadline,
		"--leader-elect-retry-period=" + retryPeriod,
	}
	return s.shippedController(name, kubeconfig, slices.Concat(lease, s.options.ControllerArgs, args)...)
}

// shippedController is belay-controller as it is shipped, but for what args say.
func (s specs) shippedController(name, kubeconfig string, args ...string) proc.Spec {
	health, metrics := s.ports.ControllerHealth, s.ports.ControllerMetrics
	if name != componentController {
		health, metrics = 0, s.ports.Sidecars[name]
	}
	spec := s.component(name, s.own.path("belay-controller"), "--kubeconfig="+kubeconfig,
		"--health-probe-bind-address="+address(health), "--metrics-bind-address="+address(metrics), "--metrics-secure=false", "--v="+strconv.Itoa(s.options.Verbosity))
	spec.Args = append(spec.Args, args...)
	return spec
}

// node is the process that makes a node's namespaces; killing it is a power cut.
func (s specs) node(name string) (proc.Spec, *nodes.Node, error) {
	config := nodes.Config{
		Lab: s.options.Name, Name: name, Kind: nodes.Kind(s.options.NodeKind),
		Dir: s.paths.node(name), LabDir: s.paths.dir(),
		Kubeconfig: s.paths.kubeconfig(name), ClientCAFile: s.paths.cert("ca.crt"),
		ServingCertFile: s.paths.cert(name + ".crt"), ServingKeyFile: s.paths.cert(name + ".key"),
		Address: s.ports.nodeAddress(name), KubeletPort: s.ports.Kubelets[name], KubeletAddress: kubeletAddress,
		FabricSocket: s.paths.fabricSocket(), Drivers: s.options.Drivers,
		Programs:                  nodes.Programs{BelayLab: s.own.path("belay-lab"), Ledger: s.own.path("ledger")},
		NodeStatusUpdateFrequency: metav1.Duration{Duration: s.options.NodeStatusUpdateFrequency},
		NodeLeaseDuration:         metav1.Duration{Duration: s.options.NodeLeaseDuration},
		Verbosity:                 s.options.Verbosity,
		AgentArgs:                 s.options.NodeArgs,
	}
	if config.Kind == nodes.KindKubelet {
		config.Programs.Kubelet = s.upstream.Path("kubelet")
	}
	if err := nodes.WriteConfig(s.paths.nodeConfig(name), config); err != nil {
		return proc.Spec{}, nil, err
	}
	command := nodes.InitCommand(config.Programs.BelayLab, s.paths.nodeConfig(name))
	if len(command) == 0 {
		return proc.Spec{}, nil, fmt.Errorf("node %s has no command", name)
	}
	return s.component(name, command[0], command[1:]...), &nodes.Node{Config: config}, nil
}
