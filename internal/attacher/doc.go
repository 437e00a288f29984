// Package attacher is the shell around publication: it observes the
// VolumeAttachments, PersistentVolumes and CSINodes of one CSI driver, lets
// publication.Decide say what is next, and does it at the API server and at the
// driver. It takes csi-attacher's place in a driver's Deployment.
//
// One queue feeds the workers. Its key is the volume (exclusive volumes) or the
// volume and the node (shared ones), so that one worker at a time decides about
// it. Calls to the driver run beside the workers: a driver that hangs holds a
// slot and its own volume, never a worker.
package attacher
