// Package attacher attaches and detaches the volumes of one CSI driver, in place of external-attacher (csi-attacher).
// It observes the VolumeAttachments, PersistentVolumes and CSINodes, asks publication.Decide for the next steps, and
// carries them out at the API server and at the driver.
//
// One work queue feeds the workers. A key is a volume (exclusive volumes) or a volume and a node (shared volumes), and
// one worker at a time processes a key. Calls to the driver run in workers of their own, so a hanging driver blocks
// only the volumes that it was called for.
package attacher
