package explain

import "regexp"

// typeOfPath describes what a pod's template can ask of a path of the node.
const typeOfPath = "kubectl explain pod.spec.volumes.hostPath.type"

// hostPathTexts are those of kubelet 1.37 about a path whose type is not what the pod's template asks for; mountTexts have those of the releases before.
// They come first: one ends with the error about a path, which other volumes have too.
var hostPathTexts = []kubeletText{
	{ // k8s.io/kubernetes v1.37.2 pkg/volume/hostpath/host_path.go:472, with pkg/volume/util/hostutil/hostutil.go:84
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed, (.+) is not a (directory|file), unable to determine its type: path "[^"]*" does not exist$`), reason: NodePathUnusable,
		why: "{1} does not exist on the node",
		steps: []Step{{
			Text:    "Create the {2} {1} on node {node}, or correct the path in the pod's template. To have kubelet create it, set the type to DirectoryOrCreate (FileOrCreate for a file). The command describes the types.",
			Command: typeOfPath,
		}},
	},
	{
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed, (.+) is not a (socket file|character device|block device), unable to determine its type: path "[^"]*" does not exist$`), reason: NodePathUnusable,
		why:   "{1} does not exist on the node, and the pod wants a {2}",
		steps: []Step{{Text: "Start the program, or load the driver, on node {node} that creates {1}, or let the pod run on a node that has it.", Command: typeOfPath}},
	},
	{ // v1.37.2 pkg/volume/hostpath/host_path.go:474: the type has the name that the pod's template has for it (pkg/volume/util/hostutil/hostutil.go:29)
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed: (.+) is not a (directory|(?:socket )?file|(?:character|block) device), it's a (\w+)$`), reason: NodePathUnusable,
		why:   "{1} on the node is of type {3}, and the pod wants a {2}",
		steps: []Step{{Text: "Correct the path in the pod's template, or set its type to {3} if the pod can use that. Do not delete {1} on node {node} before you know whose it is.", Command: typeOfPath}},
	},
	{ // v1.37.2 pkg/volume/hostpath/host_path.go:472: an error of os.Stat, or a type that a pod cannot ask for
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed, (.+) is not a (.+), unable to determine its type: (.+)$`), reason: NodePathUnusable,
		why:   "kubelet cannot read the type of {1} on the node: {3}",
		steps: []Step{{Text: "Look at {1} on node {node}: the pod wants a {2}. Correct it there, or the path in the pod's template.", Command: typeOfPath}},
	},
}
