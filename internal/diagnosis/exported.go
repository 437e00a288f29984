package diagnosis

import coordinationv1 "k8s.io/api/coordination/v1"

// AttacherLease is what csi-attacher and belay-attacher name their lease, followed by the driver.
const AttacherLease = attacherLease

// MayName reports whether objects of the namespace may appear in an output.
func (s *Snapshot) MayName(namespace string) bool { return s.mayName(namespace) }

// LeaseHeld reports whether a process held the lease when the objects were read.
func (s *Snapshot) LeaseHeld(lease *coordinationv1.Lease) bool {
	return (&state{Snapshot: s}).held(lease)
}

// Hide returns a function that takes the names from namespaces that the reader may not read out of a text.
func (s *Snapshot) Hide() func(text string) string { return newState(s).hide }
