package telemetry

import "time"

// Reports of what keeps an installation from working as it should.
const (
	// RefusedReport has the webhooks that a receiver refuses: a Refused by "receiver/provider".
	RefusedReport = "webhooks_refused"
	// DiskReport has a disk that has too little free space: a Disk by process.
	DiskReport = "disk"
	// RefusedTTL and DiskTTL are how long such a report is kept. Posts come rarely where little is sent.
	RefusedTTL = 24 * time.Hour
	DiskTTL    = 30 * time.Second
)

// Refused are the posts of a provider that a receiver has refused since the last one that it could verify.
type Refused struct {
	Provider string    `json:"provider"`
	Code     string    `json:"code"` // of the newest refusal: bad_signature, stale or not_verified
	Posts    int64     `json:"posts"`
	Since    time.Time `json:"since"` // the first of them
	Last     time.Time `json:"last"`
}

// Disk is a disk whose free space is below the reserve: batches are refused.
type Disk struct {
	Folder  string    `json:"folder"`
	Free    int64     `json:"free"` // bytes, like Reserve
	Reserve int64     `json:"reserve"`
	Since   time.Time `json:"since"`
}
