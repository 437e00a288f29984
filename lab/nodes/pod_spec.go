package nodes

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/securitycontext"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"belay.dev/belay/node"
)

// loopbackIP is the address of a node that is given no other, and of a kubelet's pods that want a network of their own.
const loopbackIP = "127.0.0.1"

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// tokenVolumePrefix begins the volume that the service account admission adds to every
// pod. A plain process of the lab has no use for it.
const tokenVolumePrefix = "kube-api-access-"

// podSpec builds the specs of a pod's containers.
type podSpec struct {
	pod *corev1.Pod
	// dir is the pod's directory on the node; volumes that are not CSI's lie there.
	dir    string
	ledger string
	// address is that of the node.
	address string
	// mounted are the CSI volumes by their name in the pod.
	mounted map[string]node.Mount
}

// checkVolumes says which volumes of a pod a belay node of the lab does not know.
func checkVolumes(pod *corev1.Pod) error {
	var problems []error
	for _, volume := range pod.Spec.Volumes {
		known := volume.EmptyDir != nil || volume.HostPath != nil || volume.PersistentVolumeClaim != nil ||
			volume.CSI != nil || volume.Ephemeral != nil || strings.HasPrefix(volume.Name, tokenVolumePrefix)
		if !known {
			problems = append(problems, fmt.Errorf("volume %q is of a kind that a belay node of the lab does not have; "+
				"it has emptyDir, hostPath, persistentVolumeClaim, ephemeral and csi", volume.Name))
		}
	}
	return errors.Join(problems...)
}

// spec is what container-exec needs for one container.
func (p podSpec) spec(c corev1.Container) (containerSpec, error) {
	env, values, err := p.env(c)
	if err != nil {
		return containerSpec{}, err
	}
	expand := func(texts []string) []string {
		var expanded []string
		for _, text := range texts {
			expanded = append(expanded, expansion.Expand(text, expansion.MappingFuncFor(values)))
		}
		return expanded
	}
	spec := containerSpec{Command: expand(c.Command), Env: env, WorkDir: c.WorkingDir}
	if len(spec.Command) == 0 {
		spec.Command = slices.Clone(imageEntrypoint)
	}
	spec.Command = append(spec.Command, expand(c.Args)...)
	if spec.WorkDir == "" {
		spec.WorkDir = "/"
	}
	if err := p.security(c, &spec); err != nil {
		return containerSpec{}, err
	}
	spec.Mounts, err = p.mounts(c)
	return spec, err
}

// security sets the user of the container; the lab's image names none, so that is root by default.
func (p podSpec) security(c corev1.Container, spec *containerSpec) error {
	of := securitycontext.DetermineEffectiveSecurityContext(p.pod, &c)
	spec.UID, spec.GID = of.RunAsUser, of.RunAsGroup
	spec.ReadOnlyRoot = of.ReadOnlyRootFilesystem != nil && *of.ReadOnlyRootFilesystem
	if of.RunAsNonRoot != nil && *of.RunAsNonRoot && (spec.UID == nil || *spec.UID == 0) {
		return fmt.Errorf("container %s has runAsNonRoot and would run as root", c.Name)
	}
	if of := p.pod.Spec.SecurityContext; of != nil {
		if of.FSGroup != nil {
			spec.Groups = append(spec.Groups, *of.FSGroup)
		}
		spec.Groups = append(spec.Groups, of.SupplementalGroups...)
	}
	return nil
}

// env is the environment in its order, and as a map for $(NAME) in the command.
func (p podSpec) env(c corev1.Container) ([]string, map[string]string, error) {
	env := []string{defaultPath, "HOME=/root", "HOSTNAME=" + p.pod.Spec.NodeName}
	values := map[string]string{}
	if len(c.EnvFrom) > 0 {
		return nil, nil, errors.New("envFrom is not there on a belay node of the lab")
	}
	for _, variable := range c.Env {
		value := expansion.Expand(variable.Value, expansion.MappingFuncFor(values))
		if variable.ValueFrom != nil {
			if variable.ValueFrom.FieldRef == nil {
				return nil, nil, fmt.Errorf("variable %s: a belay node of the lab has valueFrom.fieldRef only", variable.Name)
			}
			var err error
			if value, err = p.field(variable.ValueFrom.FieldRef.FieldPath); err != nil {
				return nil, nil, fmt.Errorf("variable %s: %w", variable.Name, err)
			}
		}
		values[variable.Name] = value
		env = append(env, variable.Name+"="+value)
	}
	return env, values, nil
}

func (p podSpec) field(name string) (string, error) {
	switch name {
	case "spec.nodeName":
		return p.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP", "status.hostIPs", "status.podIPs":
		return p.address, nil
	}
	value, err := fieldpath.ExtractFieldPathAsString(p.pod, name)
	if err != nil {
		return "", fmt.Errorf("read field %s: %w", name, err)
	}
	return value, nil
}

// mounts are the image's file, the volumes at their mount paths, and the devices.
func (p podSpec) mounts(c corev1.Container) ([]bind, error) {
	binds := []bind{{Source: p.ledger, Target: ledgerPath, ReadOnly: true}}
	for _, mount := range c.VolumeMounts {
		if strings.HasPrefix(mount.Name, tokenVolumePrefix) {
			continue
		}
		source, readOnly, err := p.directory(mount.Name)
		if err != nil {
			return nil, err
		}
		if source, err = p.subPath(source, mount); err != nil {
			return nil, err
		}
		binds = append(binds, bind{Source: source, Target: path.Clean(mount.MountPath), ReadOnly: readOnly || mount.ReadOnly})
	}
	for _, device := range c.VolumeDevices {
		volume, ok := p.mounted[device.Name]
		if !ok || !volume.Block {
			return nil, fmt.Errorf("volume %q is no block device", device.Name)
		}
		binds = append(binds, bind{Source: volume.Path, Target: path.Clean(device.DevicePath), ReadOnly: volume.ReadOnly, Device: true})
	}
	return binds, nil
}

func (p podSpec) subPath(source string, mount corev1.VolumeMount) (string, error) {
	if mount.SubPathExpr != "" {
		return "", fmt.Errorf("mount of volume %q: subPathExpr is not there on a belay node of the lab", mount.Name)
	}
	if mount.SubPath == "" {
		return source, nil
	}
	full, err := inside(source, "/"+mount.SubPath)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(full); err == nil {
		return full, nil
	}
	if err := os.MkdirAll(full, 0o755); err != nil {
		return "", fmt.Errorf("make subPath of volume %q: %w", mount.Name, err)
	}
	return full, nil
}

// directory is where a volume's content lies on the node.
func (p podSpec) directory(name string) (dir string, readOnly bool, err error) {
	if volume, ok := p.mounted[name]; ok {
		if volume.Block {
			return "", false, fmt.Errorf("volume %q is a block device and cannot be mounted as a directory", name)
		}
		return volume.Path, volume.ReadOnly, nil
	}
	for _, volume := range p.pod.Spec.Volumes {
		switch {
		case volume.Name != name:
		case volume.HostPath != nil:
			return volume.HostPath.Path, false, nil
		case volume.EmptyDir != nil:
			dir := filepath.Join(p.dir, "volumes", name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return "", false, fmt.Errorf("make emptyDir %q: %w", name, err)
			}
			if err := os.Chmod(dir, 0o777); err != nil {
				return "", false, fmt.Errorf("make emptyDir %q: %w", name, err)
			}
			return dir, false, nil
		}
	}
	return "", false, fmt.Errorf("volume %q is not mounted", name)
}
