package explained

import (
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

// kubeletHangs: the node is Ready, and its kubelet does not end a pod.
func kubeletHangs(s *stuck) {
	s.Hold(hung, scenario.StorageClass)
	s.hang(hung)
	s.Remove("holder")
	s.Wait()
	s.explains("kubelet-hangs", s.waiter(), blocked, "HeldByTerminatingPod")
	s.explains("kubelet-hangs-holder", s.podRef("holder"), blocked, "PodTerminating")
}

// nodeUnmanaged: the node's kubelet attaches by itself, as it says.
func nodeUnmanaged(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.hang(unmanaged) // its agent would set the annotation again
	s.patchNode(unmanaged, `{"metadata":{"annotations":{%q:null}}}`, kube.ManagedAttachAnnotation)
	if s.plane == cluster.PlaneUpstream { // it forgets a managed node only when it starts
		if err := s.Scene.Cluster.Kill("attach-controller"); err != nil {
			s.Fatal(err)
		}
	}
	s.Create("waiter", unmanaged)
	s.explains("node-unmanaged", s.waiter(), blocked, "NodeNotManaged")
}

// driverNotOnNode: the driver's registration on the node is gone, and the driver does not answer.
func driverNotOnNode(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.freeze(bare, nodes.ChildDriver)
	s.register(bare)
	s.Create("waiter", bare)
	s.explains("driver-not-on-node", s.waiter(), blocked, "DriverNotOnNode")
}

// deadNode: the machine is off.
func deadNode(s *stuck) {
	s.Hold(off, scenario.StorageClass)
	if err := s.Scene.Cluster.PowerOff(off); err != nil {
		s.Fatal(err)
	}
	s.Wait()
	s.explains("dead-node", s.waiter(), unsafe, "NodeNotReady")
	s.explains("dead-node-running", s.podRef("holder"), unsafe, "NodeNotReady")
	s.explains("dead-node-node", diagnosis.Ref{Resource: diagnosis.Nodes, Name: off}, unsafe, "NodeNotReady")
	s.Remove("holder")
	s.explains("dead-node-holder", s.podRef("holder"), unsafe, "PodOnLostNode")
	s.explains("dead-node-deleted", s.waiter(), unsafe, "NodeNotReady")
}

// partition: the node's agent is silent, and its pods write.
func partition(s *stuck) {
	s.Hold(cutOff, scenario.StorageClass)
	s.freeze(cutOff, nodes.ChildAgent)
	s.Wait()
	s.explains("partition", s.waiter(), unsafe, "NodeNotReady")
	s.Vanish("holder")
	s.explains("partition-forced", s.waiter(), unsafe, "NodeNotReady")
}

// taintOnReadyNode: a person says that the machine is off, and it is not.
func taintOnReadyNode(s *stuck) {
	s.Hold(tainted, scenario.StorageClass)
	s.Fault(labdisk.Fault{Method: "NodeUnstageVolume", Node: tainted, Effect: labdisk.EffectHang})
	s.Wait()
	if err := s.Scene.MarkOutOfService(s.Context(), tainted); err != nil {
		s.Fatal(err)
	}
	s.explains("taint-on-ready-node", s.waiter(), unsafe, "OutOfServiceNodeReady")
}

// nodeDeleted: the Node goes and does not come back.
func nodeDeleted(s *stuck) {
	s.Hold(deleted, scenario.StorageClass)
	s.DeleteNode(deleted)
	s.Vanish("holder")
	s.Wait() // last: upstream's event names the pods that use the volume in the moment in which it first sees this one
	s.explains("node-deleted", s.waiter(), unsafe, "NodeGone")
}

// nodeRecreated: the Node registers again, on the same boot, and never lists the volume.
func nodeRecreated(s *stuck) {
	s.Hold(recreated, scenario.StorageClass)
	s.Wait()
	s.DeleteNode(recreated)
	s.Vanish("holder")
	if err := s.Scene.Cluster.Kill(recreated + "/" + nodes.ChildAgent); err != nil {
		s.Fatal(err)
	}
	s.explainsFor(fleeting, "node-recreated", s.waiter(), unsafe, "NodeReturned")
}

const diskAttacher = "attacher"

// attacherDown: nothing carries out the detach.
func attacherDown(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	if err := s.Scene.Cluster.Stop(s.Context(), diskAttacher); err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := s.Scene.Cluster.RunAttacher(diskAttacher); err != nil {
			s.Error(err)
		}
	}()
	s.ends()
	s.detaches() // before another pod waits: upstream has an event for a pod that it sees first
	s.Wait()
	s.explains("attacher-down", s.waiter(), blocked, "AttacherNotRunning")
}

// driverDown: the driver's controller plugin does not run, so its attacher cannot either.
func driverDown(s *stuck) {
	s.Claim(scenario.StorageClass)
	if err := s.Scene.Cluster.Stop(s.Context(), "fabric"); err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := s.Scene.Cluster.RunStorage(); err != nil {
			s.Error(err)
		}
	}()
	s.Wait()
	s.explains("driver-down", s.waiter(), blocked, "AttacherNotRunning")
}
